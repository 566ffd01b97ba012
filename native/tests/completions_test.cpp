// Who asks to be told of an operation is told once, whether it is done by then or not.
#include "engine/completions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/operation.h"

namespace shoal::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(told_when_it_is_done_and_not_before) {
  const auto completions = std::make_shared<Completions>();
  Operation operation(1);
  operation.tell(completions, 7);
  CHECK(!completions->next(milliseconds(20)).has_value());
  operation.finish({});
  CHECK(completions->next(seconds(5)) == std::optional<std::uint64_t>(7));
  CHECK(!completions->next(milliseconds(20)).has_value());
}

TEST(told_at_once_of_what_is_done) {
  const auto completions = std::make_shared<Completions>();
  Operation operation(1);
  operation.finish({});
  operation.tell(completions, 8);
  CHECK(completions->next(seconds(0)) == std::optional<std::uint64_t>(8));
}

TEST(every_one_goes_to_one_of_many_threads) {
  constexpr std::uint64_t count = 2000;
  const auto completions = std::make_shared<Completions>();
  std::vector<std::unique_ptr<Operation>> operations;
  for (std::uint64_t token = 0; token < count; ++token) {
    operations.push_back(std::make_unique<Operation>(token));
  }
  std::vector<std::vector<std::uint64_t>> taken(3);
  std::vector<std::thread> threads;
  threads.reserve(taken.size() + 1);
  for (std::vector<std::uint64_t>& mine : taken) {
    threads.emplace_back([&completions, &mine] {
      while (const std::optional<std::uint64_t> token = completions->next(milliseconds(500))) {
        mine.push_back(*token);
      }
    });
  }
  threads.emplace_back([&operations] {
    for (const std::unique_ptr<Operation>& operation : operations) {
      operation->finish({});
    }
  });
  for (std::uint64_t token = 0; token < count; ++token) {
    operations[token]->tell(completions, token);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::multiset<std::uint64_t> all;
  for (const std::vector<std::uint64_t>& mine : taken) {
    all.insert(mine.begin(), mine.end());
  }
  std::vector<std::uint64_t> expected(count);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(std::equal(all.begin(), all.end(), expected.begin(), expected.end()));
}

TEST(nobody_waits_after_close) {
  const auto completions = std::make_shared<Completions>();
  std::atomic<bool> waits{false};
  std::thread waiting([&] {
    waits = true;
    const auto before = std::chrono::steady_clock::now();
    CHECK(!completions->next(seconds(60)).has_value());
    CHECK(std::chrono::steady_clock::now() - before < seconds(30));
  });
  while (!waits) {
    std::this_thread::yield();
  }
  completions->close();
  waiting.join();
  CHECK(completions->closed());
}

}  // namespace
}  // namespace shoal::engine

RUN_TESTS()
