#include "protocol/gates.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/gate_watch.h"
#include "tests/check.h"

namespace {

using namespace shoal;
using engine::GateWatch;

Submission held(std::uint64_t handle, Time timeout = 100) {
  Submission submission;
  submission.handle = handle;
  submission.awaits_input = true;
  submission.occurrence = 0;
  submission.timeout = timeout;
  return submission;
}

Gate gate_at(const std::shared_ptr<GateWord>& word, std::uint32_t value) {
  return {word, value, std::make_shared<GateWord>(0), 1, nullptr};
}

template <class Condition>
bool comes_true(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

TEST(a_call_is_held_until_its_input_is_there_and_given_out_once) {
  Gates gates;
  gates.hold(held(1), 100, 5);
  gates.hold(held(2), 20, 7);
  gates.check_invariants();
  CHECK_EQ(gates.bytes(), 120U);
  CHECK(!gates.release(3, ""));
  const auto released = gates.release(1, "");
  CHECK(released && released->submission.handle == 1 && released->record == 100);
  CHECK(!gates.release(1, ""));
  CHECK(!released->submission.awaits_input);
  CHECK_EQ(gates.count(), 1U);
  gates.check_invariants();
}

TEST(a_call_whose_input_does_not_come_is_late_after_its_timeout) {
  Gates gates;
  CHECK_EQ(gates.deadline(), never);
  gates.hold(held(2), 0, 5);
  gates.hold(held(1), 0, 8);
  CHECK_EQ(gates.deadline(), 55);
  CHECK(gates.take_late(54).empty());
  CHECK(gates.take_late(55).empty());
  CHECK_EQ(gates.deadline(), 58);
  CHECK(gates.take_late(58).empty());
  CHECK(gates.take_late(104).empty());
  CHECK((gates.take_late(105) == std::vector<std::uint64_t>{2}));
  const auto released = gates.release(2, input_is_late);
  CHECK_EQ(released->submission.failure, input_is_late);
  CHECK_EQ(gates.deadline(), 108);
  CHECK((gates.take_late(200) == std::vector<std::uint64_t>{1}));
}

TEST(an_input_that_came_while_its_process_was_stopped_is_not_late) {
  Gates gates;
  gates.hold(held(1, 100 * second), 0, 0);
  CHECK_EQ(gates.deadline(), 99 * second);
  CHECK(gates.take_late(1'000 * second).empty());
  CHECK_EQ(gates.deadline(), 1'001 * second);
  CHECK(gates.release(1, "").has_value());
  CHECK(gates.take_late(1'001 * second).empty());
}

TEST(a_gate_opens_when_its_word_has_come_so_far_also_past_the_largest_number) {
  const auto word = std::make_shared<GateWord>(0xffffffffU);
  CHECK(gate_at(word, 0xfffffffeU).is_open());
  CHECK(gate_at(word, 0xffffffffU).is_open());
  CHECK(!gate_at(word, 0).is_open());
  word->store(3);
  CHECK(gate_at(word, 0xffffffffU).is_open() && gate_at(word, 3).is_open() && !gate_at(word, 4).is_open());
}

TEST(each_gate_is_told_of_once_when_it_has_opened) {
  const auto word = std::make_shared<GateWord>(0);
  std::set<int> opened;
  std::atomic<int> count{0};
  GateWatch watch;
  watch.start();
  for (int i = 0; i < 3; ++i) {
    watch.add(gate_at(word, static_cast<std::uint32_t>(i + 1)),
              [&, i](const std::string& problem) { count += problem.empty() && opened.insert(i).second ? 1 : 100; });
  }
  word->store(2);
  CHECK(comes_true([&] { return count == 2; }));
  word->store(3);
  CHECK(comes_true([&] { return count == 3; }));
  watch.close();
}

TEST(a_watch_that_is_closed_tells_nothing_more) {
  const auto word = std::make_shared<GateWord>(0);
  std::atomic<int> count{0};
  GateWatch watch;
  watch.start();
  const auto tell = [&](const std::string&) { ++count; };
  CHECK(watch.add(gate_at(word, 1), tell));
  watch.close();
  watch.close();
  word->store(1);
  CHECK(!watch.add(gate_at(word, 1), tell));
  watch.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_EQ(count.load(), 0);
}

TEST(a_gate_that_stays_closed_is_asked_what_is_wrong_with_it) {
  Gate gate = gate_at(std::make_shared<GateWord>(0), 1);
  std::atomic<int> asked{0};
  gate.problem = [&] { return ++asked < 2 ? "" : "the device has failed"; };
  std::atomic<bool> told{false};
  std::string problem;
  GateWatch watch;
  watch.start();
  watch.add(gate, [&](const std::string& why) {
    problem = why;
    told = true;
  });
  CHECK(comes_true([&] { return told.load(); }));
  CHECK_EQ(problem, "the device has failed");
}

TEST(gates_may_be_added_from_what_a_gate_has_opened_and_by_several_threads) {
  const auto word = std::make_shared<GateWord>(0);
  std::atomic<int> count{0};
  GateWatch watch;
  watch.start();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        watch.add(gate_at(word, 1),
                  [&](const std::string&) { watch.add(gate_at(word, 2), [&](const std::string&) { ++count; }); });
        if (i == 50) {
          word->store(1);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  word->store(2);
  CHECK(comes_true([&] { return count == 300; }));
}

}  // namespace

RUN_TESTS()
