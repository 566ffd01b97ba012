// Whole jobs in one process (engine_job.h) with operations whose input an accelerator brings.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol/gates.h"
#include "tests/engine_job.h"

namespace {

using namespace shoal;
using namespace shoal::tests;

Gate gate_of(const std::shared_ptr<GateWord>& ready, std::uint32_t value) {
  return {ready, value, std::make_shared<GateWord>(0), 1, nullptr};
}

// Rank 0's first call has no input yet; its second one has.
void later_calls_are_not_held_up(Job& job) {
  std::vector<std::vector<float>> first(job.size());
  std::vector<std::vector<float>> second(job.size());
  std::vector<std::shared_ptr<Operation>> firsts;
  std::vector<std::shared_ptr<Operation>> seconds;
  const auto ready = std::make_shared<GateWord>(0);
  const Gate gate = gate_of(ready, 1);
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    first[rank].assign(20'000, rank == 0 ? -1.0F : 1.0F);
    second[rank].assign(100, 1.0F);
    Submission submission = of(Collective::all_reduce, "", first[rank], &first[rank]);
    firsts.push_back(rank == 0 ? job.engines[rank]->submit(std::move(submission), gate)
                               : job.engines[rank]->submit(std::move(submission)));
    seconds.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "", second[rank], &second[rank])));
  }
  for (const auto& operation : seconds) {
    expect_well(operation);
  }
  CHECK(!firsts[0]->done() && gate.done->load() == 0);
  first[0].assign(20'000, 5.0F);
  ready->store(1, std::memory_order_release);
  for (const auto& operation : firsts) {
    expect_well(operation);
  }
  CHECK_EQ(gate.done->load(), 1U);
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    CHECK_EQ(first[rank].front(), 4.0F + static_cast<float>(job.size()));
    CHECK_EQ(second[rank].back(), static_cast<float>(job.size()));
  }
}

TEST(an_operation_whose_input_is_on_its_way_holds_up_no_later_one_and_is_matched_by_its_call) {
  Job job(3, 3, 0);
  later_calls_are_not_held_up(job);
}

TEST(the_same_among_the_ranks_of_one_machine) {
  Job job(3, 1, 0, 4096, {0, 0, 0});
  later_calls_are_not_held_up(job);
}

TEST(the_same_among_machines_of_several_ranks) {
  Job job(4, 0, 2, 4096, {0, 0, 2, 2});
  later_calls_are_not_held_up(job);
}

TEST(operations_of_two_groups_end_that_are_called_and_brought_in_opposite_orders) {
  Job job(2, 2, 0);
  const std::uint32_t other[] = {job.engines[0]->make_group({0, 1}, "other"),
                                 job.engines[1]->make_group({0, 1}, "other")};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<float>> arrays(4, std::vector<float>(3'000, -1.0F));
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<std::shared_ptr<GateWord>> words(4);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        std::vector<float>& array = arrays[2 * rank + i];
        words[2 * rank + i] = std::make_shared<GateWord>(0);
        Submission submission = of(Collective::all_reduce, "", array, &array);
        submission.group = (rank + i) % 2 == 0 ? 0 : other[rank];
        operations.push_back(job.engines[rank]->submit(std::move(submission), gate_of(words[2 * rank + i], 1)));
      }
    }
    for (const std::uint32_t which : {1, 2, 0, 3}) {
      arrays[which].assign(3'000, (which / 2 + which % 2) % 2 == 0 ? 1.0F : 10.0F);  // by its group
      words[which]->store(1, std::memory_order_release);
    }
    for (const auto& operation : operations) {
      expect_well(operation);
    }
    for (const std::uint32_t which : {0, 1, 2, 3}) {
      CHECK_EQ(arrays[which][round], (which / 2 + which % 2) % 2 == 0 ? 2.0F : 20.0F);
    }
  }
}

// As in an accelerator's stream: all are called at once, and each takes what the one before it gives.
TEST(operations_whose_inputs_are_results_of_others_end) {
  for (const bool inside : {false, true}) {
    Job job(2, 1, 0, 4096, inside ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>{});
    constexpr int count = 20;
    std::vector<std::vector<float>> arrays(2, std::vector<float>(1'000, 1.0F));
    const std::shared_ptr<GateWord> words[] = {std::make_shared<GateWord>(0), std::make_shared<GateWord>(0)};
    std::vector<std::shared_ptr<Operation>> operations[2];
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::uint32_t i = 0; i < count; ++i) {
        Submission submission = of(Collective::all_reduce, "", arrays[rank], &arrays[rank]);
        operations[rank].push_back(job.engines[rank]->submit(std::move(submission), gate_of(words[rank], i + 1)));
      }
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        words[rank]->store(i + 1, std::memory_order_release);
      }
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        expect_well(operations[rank][i]);
      }
    }
    CHECK_EQ(arrays[0].front(), static_cast<float>(1 << count));
    CHECK(arrays[0] == arrays[1]);
  }
}

TEST(a_rank_that_leaves_ends_what_it_has_called_first) {
  for (const bool inside : {false, true}) {
    Job job(2, 1, 0, 4096, inside ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>{});
    std::vector<float> arrays[] = {{1, 2}, {3, 4}};
    const auto ready = std::make_shared<GateWord>(0);
    const auto held = job.engines[0]->submit(of(Collective::all_reduce, "", arrays[0], &arrays[0]), gate_of(ready, 1));
    job.engines[0]->leave();
    const auto other = job.engines[1]->submit(of(Collective::all_reduce, "", arrays[1], &arrays[1]));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!job.engines[0]->left() && !other->done());
    ready->store(1, std::memory_order_release);
    expect_well(held);
    expect_well(other);
    CHECK_EQ(arrays[0][1], 6.0F);
  }
}

bool are_nan(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

bool passes(const Gate& gate) {
  const auto deadline = std::chrono::steady_clock::now() + longest_operation;
  while (!gate.is_passed() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return gate.is_passed();
}

TEST(a_gate_is_passed_when_the_operation_fails_too_and_the_output_is_no_number) {
  Job job(2, 2, 0);
  std::vector<float> few(10);
  std::vector<float> many(20);
  const auto ready = std::make_shared<GateWord>(0);
  const Gate mismatch = gate_of(ready, 1);
  const auto held = job.engines[0]->submit(of(Collective::all_reduce, "x", few, &few), mismatch);
  const auto other = job.engines[1]->submit(of(Collective::all_reduce, "x", many, &many));
  ready->store(1, std::memory_order_release);
  CHECK(outcome(held).code == Code::mismatch && outcome(other).code == Code::mismatch);
  CHECK(mismatch.is_passed() && are_nan(few) && !are_nan(many));
}

TEST(an_operation_that_fails_before_its_input_is_there_passes_its_gate_when_that_is) {
  Job job(2, 2, 0);
  std::vector<float> array(10);
  const auto ready = std::make_shared<GateWord>(0);
  const Gate gate = gate_of(ready, 1);
  Submission submission = of(Collective::all_reduce, "x", array, &array);
  submission.timeout = second / 10;
  const auto late = job.engines[0]->submit(std::move(submission), gate);
  CHECK(outcome(late).code == Code::failed_on_rank);
  CHECK(outcome(late).message.find(input_is_late) != std::string::npos);
  const auto other = job.engines[1]->submit(of(Collective::all_reduce, "x", array, &array));
  CHECK(outcome(other).message.find(input_is_late) != std::string::npos);
  CHECK(!gate.is_passed());
  ready->store(1, std::memory_order_release);
  CHECK(passes(gate));
  CHECK(are_nan(array));
}

TEST(an_input_that_comes_within_its_timeout_is_waited_for_and_one_that_does_not_is_heard_of_by_those_who_wait) {
  for (const bool inside : {false, true}) {
    Job job(2, 1, 0, 4096, inside ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>{});
    std::vector<float> arrays[] = {{1, 2}, {3, 4}};
    for (const bool comes : {true, false}) {
      const auto ready = std::make_shared<GateWord>(0);
      Submission late = of(Collective::all_reduce, "", arrays[0], &arrays[0]);
      late.timeout = second / 2;
      const Gate gate = gate_of(ready, 1);
      const auto here = job.engines[0]->submit(std::move(late), gate);
      const auto there = job.engines[1]->submit(of(Collective::all_reduce, "", arrays[1], &arrays[1]));
      std::this_thread::sleep_for(std::chrono::milliseconds(350));  // past the first look
      CHECK(!here->done() && !there->done());
      ready->store(comes ? 1 : 0, std::memory_order_release);
      for (const auto& operation : {here, there}) {
        if (comes) {
          expect_well(operation);
        } else {
          CHECK(outcome(operation).message.find(input_is_late) != std::string::npos);
        }
      }
      ready->store(1, std::memory_order_release);
      CHECK(passes(gate));
    }
  }
}

TEST(an_operation_whose_input_will_never_come_fails_for_all) {
  for (const bool inside : {false, true}) {
    Job job(2, 1, 0, 4096, inside ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>{});
    std::vector<float> arrays[] = {{1, 2}, {3, 4}};
    Gate gate = gate_of(std::make_shared<GateWord>(0), 1);
    gate.problem = [] { return "the device has failed"; };
    const auto here = job.engines[0]->submit(of(Collective::all_reduce, "", arrays[0], &arrays[0]), gate);
    const auto there = job.engines[1]->submit(of(Collective::all_reduce, "", arrays[1], &arrays[1]));
    for (const auto& operation : {here, there}) {
      CHECK(outcome(operation).message.find("the device has failed") != std::string::npos);
    }
  }
}

TEST(an_engine_that_closes_passes_the_gates_of_what_is_open) {
  Job job(2, 2, 0);
  std::vector<float> array(10);
  const Gate gate = gate_of(std::make_shared<GateWord>(0), 1);
  const auto open = job.engines[0]->submit(of(Collective::all_reduce, "y", array, &array), gate);
  job.engines[0]->close();
  CHECK(open->done() && open->status().code == Code::cancelled && gate.is_passed());
}

}  // namespace

RUN_TESTS()
