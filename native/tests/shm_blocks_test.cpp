// Ranks of a node among several that lack memory for blocks, on a network that the tests play themselves: ranks as
// threads over one mapping.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/shm/memory.h"
#include "drivers/shm/shared_group.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;

constexpr std::uint32_t in_the_job = 4;

Shape shape_with_results(std::uint32_t ranks) {
  Shape shape = small_shape(ranks);
  shape.results = 2;
  return shape;
}

// The other node, of two ranks, gathers as much as this one's, all zero.
void gather_zeros(Rank& rank, const Submission& submission) {
  if (submission.streamed) {
    const std::uint64_t own = submission.output_bytes / 2;
    std::memset(submission.output + own, 0, own);
    rank.group().received(submission.handle, {own, 2 * own});
  } else {
    const std::vector<std::uint64_t> by_node(2, submission.input_bytes);
    std::byte* const told = rank.group().allocate_told(submission.handle, by_node);
    std::memcpy(told, submission.input, submission.input_bytes);
    std::memcpy(told + submission.input_bytes, submission.input, submission.input_bytes);
  }
  rank.group().averaged(submission.handle, {});
}

TEST(a_rank_without_memory_for_what_it_gathers_fails_that_on_all_ranks_and_the_job_goes_on) {
  constexpr std::size_t count = 50'000;
  constexpr std::uint32_t second = std::uint32_t{1} << 31U;
  for (const std::uint32_t lacking : {0U, 1U}) {
    Submission told;  // to the other nodes
    on_ranks(
        2, shape_with_results(2),
        [&](Rank& rank) {
          rank.network = [&](const Submission& submission) { gather_zeros(rank, submission); };
          rank.on_failure = [&](const Submission& submission) { told = submission; };
          std::vector<float> values(count, static_cast<float>(rank.rank() + 1));
          std::vector<float> none;
          for (int round = 0; round < 3; ++round) {
            rank.has_memory = round != 1 || rank.rank() != lacking;
            const std::uint64_t handle = rank.submit("rows", values, none, Operator::none, Collective::all_gather);
            const Status status = rank.wait(handle);
            if (round == 1) {
              CHECK(status.code == Code::failed_on_rank);
              CHECK_EQ(status.rank, static_cast<std::int32_t>(lacking));
              const std::string brought = " (here) 800000 bytes, for which there is no memory";
              CHECK(status.message.find("'rows' brings rank " + std::to_string(lacking) + brought) !=
                    std::string::npos);
            } else {
              CHECK_EQ(status.message, "");
              const std::vector<float> all = rank.gathered(handle);
              CHECK_EQ(all.size(), 4 * count);
              CHECK(all[0] == 1 && all[count] == 2 && all[2 * count] == 0);
            }
          }
          CHECK(!rank.has_failed_job);
        },
        in_the_job);
    CHECK_EQ(told.name, "rows");
    CHECK_EQ(told.occurrence.value_or(0), 1 | second);
    CHECK(told.failure_code == Code::failed_on_rank);
    CHECK_EQ(told.failure_rank, static_cast<std::int32_t>(lacking));
  }
}

// The others have what it brings, with the sizes.
TEST(a_rank_without_memory_for_short_blocks_fails_alone_and_the_job_goes_on) {
  on_ranks(
      2, shape_with_results(2),
      [](Rank& rank) {
        rank.network = [&](const Submission& submission) { gather_zeros(rank, submission); };
        std::vector<float> values(2, 1);
        std::vector<float> none;
        for (int round = 0; round < 4; ++round) {
          const bool lacks = round % 2 == static_cast<int>(rank.rank());
          rank.has_memory = !lacks;
          const Status status = rank.wait(rank.submit("row", values, none, Operator::none, Collective::all_gather));
          CHECK(status.code == (lacks ? Code::failed_on_rank : Code::ok));
        }
        CHECK(!rank.has_failed_job);
      },
      in_the_job);
}

TEST(open_reduce_scatters_take_no_more_than_their_limit_beyond_which_they_fail_on_all_ranks) {
  JobConfig::Tables tables;
  tables.crossing = 600'000;
  constexpr std::size_t count = 100'000;  // 400,000 bytes, for which 524,288 are taken, of which half count
  const auto memory = std::make_shared<Memory>(shape_with_results(2));
  std::atomic<int> done{0};
  std::atomic<int> told{0};
  const auto work = [&](std::uint32_t own) {
    Rank rank(memory, own, in_the_job, tables);
    std::mutex mutex;
    std::map<std::uint64_t, Submission> sent;
    rank.network = [&](const Submission& submission) {
      const std::lock_guard lock(mutex);
      sent.emplace(submission.handle, submission);
    };
    const auto is_sent = [&](std::uint64_t handle) {
      const std::lock_guard lock(mutex);
      return sent.contains(handle);
    };
    rank.on_failure = [&](const Submission& submission) { told += submission.failure_code == Code::limit ? 1 : 0; };
    std::vector<std::vector<float>> inputs(3, std::vector<float>(count, 1));
    std::vector<std::vector<float>> outputs(3, std::vector<float>(count / in_the_job));
    const auto scatter = [&](std::size_t i, std::size_t elements) {
      Submission submission;
      submission.collective = Collective::reduce_scatter;
      submission.name = "rows" + std::to_string(i) + " of " + std::to_string(elements);
      submission.op = Operator::sum;
      submission.dtype = DType::float32;
      submission.shape = {static_cast<std::int64_t>(elements)};
      submission.input = reinterpret_cast<const std::byte*>(inputs[i].data());
      submission.input_bytes = 4 * elements;
      submission.output = reinterpret_cast<std::byte*>(outputs[i].data());
      submission.output_bytes = 4 * elements / in_the_job;
      return rank.submit(std::move(submission));
    };
    const auto end = [&](std::uint64_t handle) {
      if (own == 0) {
        rank.group().wait([&] { return is_sent(handle); }, std::chrono::seconds(30));
        if (sent.at(handle).streamed) {
          rank.group().received(handle, {0, sent.at(handle).output_bytes});
        }
        rank.group().averaged(handle, {});
      }
      CHECK(rank.wait(handle).ok());
    };
    const std::uint64_t first = scatter(0, count);
    const std::uint64_t too_much = scatter(1, count);
    const Status status = rank.wait(too_much);
    CHECK(status.code == Code::limit);
    CHECK(status.message.find("on rank 0 (here), 600000 bytes (crossing_bytes)") != std::string::npos);
    CHECK(!rank.done(first));
    end(scatter(2, 16));  // a small one
    end(first);
    end(scatter(2, count));
    CHECK_EQ(outputs[2].front(), 2.0F);
    ++done;
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  CHECK_EQ(done.load(), 2);
  CHECK_EQ(told.load(), 1);
}

}  // namespace
RUN_TESTS()
