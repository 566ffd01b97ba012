// Rooms of a node among several, on a network that the tests play themselves: ranks as threads over one mapping.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "drivers/shm/memory.h"
#include "drivers/shm/room.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;

constexpr std::uint32_t in_the_job = 4;

Shape shape_of(std::uint32_t ranks) {
  Shape shape;
  shape.ranks = ranks;
  shape.slots = 3;
  shape.slot = 4096;
  return shape;
}

// The other node gives zeros.
void answer(Rank& rank, const Submission& submission) {
  if (submission.in_parts) {
    rank.room().received(submission.handle, {0, submission.output_bytes});
  }
  rank.room().averaged(submission.handle, {});
}

TEST(small_sums_come_back_from_the_network_to_all_ranks) {
  on_ranks(
      2, shape_of(2),
      [](Rank& rank) {
        rank.network = [&](const Submission& submission) { answer(rank, submission); };
        for (int round = 0; round < 100; ++round) {
          std::vector<float> values(8, static_cast<float>(rank.rank() + 1));
          CHECK(rank.wait(rank.submit("sum", values)).ok());
          CHECK_EQ(values[7], 3.0F);
        }
      },
      in_the_job);
}

// Another node is lost while an operation is sent up: so the network says at once, from the same thread.
TEST(the_network_may_answer_what_is_sent_up_with_the_end_of_the_job) {
  on_ranks(
      2, shape_of(2),
      [](Rank& rank) {
        const Status loss = Status::error(Code::peer_lost, "rank 3 is gone", 3);
        rank.network = [&](const Submission&) { rank.room().fail_all(loss); };
        std::vector<float> values(8, 1);
        const std::uint64_t handle = rank.submit("sum", values);
        if (rank.rank() == 1) {
          rank.room().fail_all(loss);
        }
        const Status status = rank.wait(handle);
        CHECK(status.code == Code::peer_lost);
        CHECK_EQ(status.rank, 3);
      },
      in_the_job);
}

TEST(the_network_may_answer_what_is_handed_over_with_the_end_of_the_job) {
  on_ranks(
      2, shape_of(2),
      [](Rank& rank) {
        std::vector<float> values(8, 1);
        rank.on_finish = [&] { rank.room().fail_all(Status::error(Code::peer_lost, "rank 3 is gone", 3)); };
        const Status status = rank.wait(rank.submit("rows", values, Operator::sum, Collective::all_gather));
        CHECK_EQ(status.message, "handed over");
        CHECK(rank.wait(rank.submit("more", values)).code == Code::peer_lost);
      },
      in_the_job);
}

// One that calls last is told at once that the others disagree; its array is its own again then.
TEST(what_others_disagree_about_takes_nothing_of_one_that_calls_later) {
  constexpr std::uint32_t ranks = 3;
  constexpr std::size_t count = 1024;
  std::atomic<int> settled{0};
  std::atomic<bool> was_small{false};
  on_ranks(
      ranks, shape_of(ranks),
      [&](Rank& rank) {
        rank.network = [&](const Submission& submission) {
          if (submission.failure.empty()) {
            was_small = !submission.in_parts;
            answer(rank, submission);
          }
        };
        // More than the contributions that may lie beside openings together.
        for (int round = 0; round < 40; ++round) {
          std::vector<float> values(rank.rank() == 2 ? count : count / 2, 1);
          // Rank 1 calls when the others have been told, and they do not go on before it has.
          while (settled < 3 * round + (rank.rank() == 1 ? 2 : 0)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          CHECK(rank.wait(rank.submit("different", values)).code == Code::mismatch);
          ++settled;
        }
        std::vector<float> values(count, 1);
        CHECK(rank.wait(rank.submit("same", values)).ok());
        CHECK_EQ(values[count - 1], 3.0F);
      },
      in_the_job);
  CHECK(was_small);
}

}  // namespace

RUN_TESTS()
