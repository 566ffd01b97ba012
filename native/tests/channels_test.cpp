// Whole jobs in one process (engine_job.h) whose engines have several channels: large all-reduces are divided among
// them, and what happens in one channel is true of the whole operation.

#include <sys/socket.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/divided_operations.h"
#include "engine/said_together.h"
#include "tests/engine_job.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;

constexpr std::uint32_t channels = 3;
constexpr std::size_t large = 400'000;  // elements: enough for all of them

Job job_of(std::uint32_t ranks, std::uint32_t colocated, std::uint32_t dedicated,
           std::vector<std::uint32_t> leaders = {}) {
  return Job(ranks, colocated, dedicated, 16384, std::move(leaders), channels);
}

template <class Enough>
void wait_until(Enough enough) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!enough()) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<std::shared_ptr<Operation>> call_everywhere(Job& job, const std::string& name,
                                                        std::vector<std::vector<float>>& arrays) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, name, arrays[rank], &arrays[rank])));
  }
  return operations;
}

// Each has lanes on every network.
void divide_lanes(std::uint32_t networks) {
  JobConfig config;
  config.hosts = {"a", "b"};
  config.lanes = 6;
  config.networks = networks;
  config.channels = 2;
  config.rate = 1000;
  config.segment = config.credit = 4096;
  for (std::uint32_t index = 0; index < 3 * config.lanes; ++index) {
    config.server_names.push_back("server" + std::to_string(index / config.lanes));
    config.server_ranks.push_back(-1);
    config.weights.push_back(index + 1);
  }
  CHECK_EQ(problem_with(config), "");
  std::vector<bool> seen(config.servers());
  std::uint64_t rates = 0;
  for (std::uint32_t channel = 0; channel < config.channels; ++channel) {
    const JobConfig part = config.of_channel(channel);
    CHECK_EQ(problem_with(part), "");
    CHECK_EQ(part.channels, 1U);
    rates += part.rate;
    std::uint32_t weights = 0;
    for (std::uint32_t there = 0; there < part.servers(); ++there) {
      const std::uint32_t index = config.index_of(channel, there);
      CHECK_EQ(config.channel_of(index), channel);
      CHECK_EQ(config.index_in_channel(index), there);
      CHECK_EQ(part.weights[there], config.weights[index]);
      CHECK_EQ(part.server_names[there], config.server_names[index]);
      CHECK_EQ(index % config.lanes % networks, there % networks);
      CHECK(!seen[index]);
      seen[index] = true;
      weights += part.weights[there];
    }
    CHECK_EQ(weights, config.channel_weights()[channel]);
  }
  CHECK(std::find(seen.begin(), seen.end(), false) == seen.end());
  CHECK(rates >= 999 && rates <= 1000);
  config.channels = 6 / networks + 1;
  CHECK(problem_with(config) != "");
}

TEST(the_lanes_of_a_channel_are_a_job_by_itself) {
  divide_lanes(1);
  divide_lanes(2);
  divide_lanes(3);
}

TEST(parts_cover_an_operation_and_end_it_together) {
  Job job = job_of(1, 1, 0);
  engine::DividedOperations divided(job.config);
  std::vector<float> array(large + 7);
  Submission first = of(Collective::all_reduce, "x", array, &array);
  first.handle = 5;
  CHECK(divided.divide(first));
  std::vector<Submission> parts = divided.number(5, 9);
  CHECK_EQ(parts.size(), channels - 1U);
  parts.insert(parts.begin(), first);
  const std::byte* at = reinterpret_cast<const std::byte*>(array.data());
  for (const Submission& part : parts) {
    CHECK(part.input == at && part.output == at);
    CHECK_EQ(*part.offset, static_cast<std::uint64_t>(at - reinterpret_cast<const std::byte*>(array.data())));
    at += part.input_bytes;
  }
  CHECK(at == reinterpret_cast<const std::byte*>(array.data() + array.size()));
  CHECK(!divided.end(5, {}).is_whole);
  const auto failed = divided.end(5, Status::error(Code::timeout, "one"));
  CHECK(!failed.is_whole && failed.is_first && failed.status.message == "one");
  const auto last = divided.end(5, Status::error(Code::timeout, "two"));
  CHECK(last.is_whole && !last.is_first);
  CHECK_EQ(last.status.message, "one");
  CHECK(divided.end(6, {}).is_whole);
}

TEST(what_all_channels_say_is_told_once_each_time) {
  engine::SaidTogether said;
  for (int time = 0; time < 3; ++time) {
    CHECK(said.add(1, "server a:1 is lost: rank 0 cannot reach it"));
    CHECK(!said.add(0, "server a:1 is lost: rank 2 cannot reach it"));
  }
  CHECK(said.add(0, "server b:1 is lost: rank 2 cannot reach it"));
}

TEST(all_reduce_with_servers_in_every_node) {
  Job job = job_of(4, 4, 0);
  all_reduce_everywhere(job, large, 6);
  all_reduce_everywhere(job, 10, 200);
}

TEST(all_reduce_with_dedicated_servers_and_both_kinds) {
  Job dedicated = job_of(3, 0, 2);
  all_reduce_everywhere(dedicated, large, 6);
  Job both = job_of(3, 2, 2);
  all_reduce_everywhere(both, large, 6);
}

TEST(all_reduce_among_nodes_of_several_ranks_and_in_groups) {
  Job job = job_of(5, 3, 1, {0, 0, 2, 2, 2});
  all_reduce_everywhere(job, large, 4);
  std::vector<std::vector<float>> arrays;
  std::vector<std::shared_ptr<Operation>> operations;
  for (const std::uint32_t rank : {0U, 2U, 4U}) {
    Engine& engine = *job.engines[rank];
    std::vector<float>& array = arrays.emplace_back(ramp(large, rank));
    Submission submission = of(Collective::all_reduce, "of a group", array, &array);
    submission.group = engine.make_group({0, 2, 4}, "some");
    operations.push_back(engine.submit(std::move(submission)));
  }
  for (const auto& operation : operations) {
    expect_well(operation);
  }
  for (const std::vector<float>& array : arrays) {
    CHECK_EQ(array[10], 36.0F);
  }
}

TEST(a_group_of_one_rank_has_the_whole_of_its_array) {
  Job job = job_of(2, 1, 1);
  const std::uint32_t alone = job.engines[0]->make_group({0}, "alone");
  std::vector<float> input = ramp(large, 5);
  std::vector<float> output(large, -1.0F);
  Submission submission = of(Collective::all_reduce, "x", input, &output);
  submission.group = alone;
  expect_well(job.engines[0]->submit(std::move(submission)));
  CHECK(output == input);
}

TEST(sums_are_the_same_to_the_bit_as_of_one_channel) {
  std::vector<std::vector<float>> sums;
  for (const std::uint32_t many : {1U, channels}) {
    Job job(3, 2, 1, 16384, {}, many);
    std::vector<std::vector<float>> arrays(3);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      for (std::size_t i = 0; i < large; ++i) {
        arrays[rank].push_back(1.0F / static_cast<float>(3 * i + rank + 1));
      }
    }
    for (const auto& operation : call_everywhere(job, "x", arrays)) {
      expect_well(operation);
    }
    sums.push_back(arrays[1]);
  }
  CHECK(sums[0] == sums[1]);
}

// One rank divides it, the others do not; or all divide it in different places.
TEST(ranks_that_disagree_on_the_size_all_hear_of_it_and_go_on) {
  Job job = job_of(3, 1, 1);
  for (const std::size_t other : {std::size_t{1000}, large / 2, std::size_t{3}}) {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<float>> arrays;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        arrays.push_back(ramp(rank == 1 ? large : other, rank));
      }
      for (const auto& operation : call_everywhere(job, "odd", arrays)) {
        CHECK(outcome(operation).code == Code::mismatch);
        CHECK(operation->status().message.find("[" + std::to_string(large) + "]") != std::string::npos);
        CHECK(operation->status().message.find("allreduce allreduce") == std::string::npos);
      }
    }
    std::vector<std::vector<float>> arrays(3, ramp(large, 0));
    for (const auto& operation : call_everywhere(job, "odd", arrays)) {
      expect_well(operation);
    }
    CHECK_EQ(arrays[2][7], 21.0F);
  }
}

TEST(a_rank_that_fails_before_it_begins_fails_all_parts) {
  Job job = job_of(2, 0, 1);
  std::vector<float> array = ramp(large, 0);
  const auto divided = job.engines[0]->submit(of(Collective::all_reduce, "x", array, &array));
  Submission failed;
  failed.name = "x";
  failed.timeout = 30 * second;
  failed.failure = "no gradient";
  const auto other = job.engines[1]->submit(std::move(failed));
  CHECK(outcome(divided).code == Code::failed_on_rank);
  CHECK(outcome(other).code == Code::failed_on_rank);
  all_reduce_everywhere(job, large, 2);
}

TEST(a_rank_that_never_calls_is_named_and_the_others_go_on) {
  Job job = job_of(3, 1, 1);
  std::vector<std::vector<float>> arrays(2, ramp(large, 0));
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Submission submission = of(Collective::all_reduce, "x", arrays[rank], &arrays[rank]);
    submission.timeout = 2 * second;
    operations.push_back(job.engines[rank]->submit(std::move(submission)));
  }
  for (const auto& operation : operations) {
    CHECK(outcome(operation).code == Code::timeout);
    CHECK(operation->status().message.find("rank 2 (host2)") != std::string::npos);
  }
}

TEST(a_rank_that_closes_is_lost_to_the_others) {
  Job job = job_of(3, 2, 1);
  std::vector<float> array = ramp(large, 0);
  const auto waiting = job.engines[0]->submit(of(Collective::all_reduce, "x", array, &array));
  job.engines[2]->close();
  CHECK(outcome(waiting).code == Code::peer_lost);
  CHECK_EQ(waiting->status().rank, 2);
  wait_until([&] { return job.engines[1]->has_losses() && job.engines[1]->loss_of_rank(2).has_value(); });
}

// A server is on the lost rank, so the job ends. Nobody takes another one's loss for its own.
TEST(what_is_lost_is_the_same_in_all_channels_and_for_all_that_is_called_later) {
  Job job = job_of(4, 4, 0);
  all_reduce_everywhere(job, large, 1);
  std::vector<std::vector<float>> arrays(6, ramp(large, 0));
  std::vector<std::shared_ptr<Operation>> operations;
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "x", arrays[rank], &arrays[rank])));
  }
  job.engines[2]->close();
  wait_until(
      [&] { return job.engines[0]->has_losses() && job.engines[1]->has_losses() && job.engines[3]->has_losses(); });
  for (int round = 0; round < 20; ++round) {
    for (const std::uint32_t rank : {0U, 1U, 3U}) {
      std::vector<float>& array = arrays[rank % 2 + 4];
      array.resize(round % 2 == 0 ? 10 : large);
      const auto later = job.engines[rank]->submit(of(Collective::all_reduce, "y", array, &array));
      CHECK(outcome(later).code == Code::peer_lost);
      CHECK_EQ(later->status().rank, 2);
      CHECK(!job.engines[rank]->loss_of_rank(1).has_value() || job.engines[rank]->loss_of_rank(1)->rank == 2);
    }
  }
  for (const auto& operation : operations) {
    CHECK(outcome(operation).code == Code::peer_lost);
    CHECK_EQ(operation->status().rank, 2);
  }
}

TEST(a_rank_that_loses_one_channels_control_link_is_lost_in_all_of_them) {
  for (std::uint32_t channel = 0; channel < channels; ++channel) {
    Job job = job_of(3, 0, 1);
    all_reduce_everywhere(job, large, 1);
    std::vector<std::vector<float>> arrays(3, ramp(100, 0));
    const auto small = job.engines[0]->submit(of(Collective::all_reduce, "small", arrays[0], &arrays[0]));
    const auto own = job.engines[2]->submit(of(Collective::all_reduce, "own", arrays[2], &arrays[2]));
    CHECK(::shutdown(job.controls.at({channel, 2}), SHUT_RDWR) == 0);
    CHECK(!outcome(small).ok());
    CHECK_EQ(small->status().rank, 2);
    CHECK(outcome(own).code == Code::peer_lost);
    CHECK_EQ(own->status().rank, 0);
  }
}

// What a rank's program gets back is not written to any more, also where the channels hear of the loss one after the
// other.
TEST(a_loss_ends_operations_of_several_ranks_a_node_and_leaves_their_arrays_alone) {
  for (std::uint32_t channel = 0; channel < channels; ++channel) {
    Job job = job_of(4, 0, 2, {0, 0, 2, 2});
    all_reduce_everywhere(job, large, 1);
    std::vector<std::vector<float>> arrays(4, ramp(4 * large, 0));
    std::vector<std::shared_ptr<Operation>> operations;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "x", arrays[rank], &arrays[rank])));
    }
    CHECK(::shutdown(job.controls.at({channel, 2}), SHUT_RDWR) == 0);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      static_cast<void>(outcome(operations[rank]));
      const std::vector<float> then = arrays[rank];
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CHECK(then == arrays[rank]);
      const auto later = job.engines[rank]->submit(of(Collective::all_reduce, "y", arrays[rank], &arrays[rank]));
      CHECK(!outcome(later).ok());
    }
  }
}

TEST(a_lane_that_is_lost_costs_its_channel_a_server_and_no_operation) {
  Job job = job_of(3, 0, 2);
  std::vector<std::vector<float>> arrays(3, ramp(4 * large, 0));
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "x", arrays[rank], &arrays[rank])));
  }
  const std::uint32_t of_second_server = channels + 1;
  CHECK(::shutdown(job.lanes.at({of_second_server, 1}), SHUT_RDWR) == 0);
  operations.push_back(job.engines[2]->submit(of(Collective::all_reduce, "x", arrays[2], &arrays[2])));
  for (const auto& operation : operations) {
    expect_well(operation);
  }
  for (const std::vector<float>& array : arrays) {
    for (std::size_t i = 0; i < array.size(); ++i) {
      CHECK_EQ(array[i], 3 * static_cast<float>(i));
    }
  }
  all_reduce_everywhere(job, large, 3);
}

TEST(a_rank_that_has_joined_contributes_zeros_to_all_parts) {
  Job job = job_of(3, 1, 1);
  all_reduce_everywhere(job, large, 1);
  static_cast<void>(job.engines[2]->join(0, 30 * second));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<float>> arrays(2, ramp(large, 1));
    std::vector<std::shared_ptr<Operation>> operations;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "y", arrays[rank], &arrays[rank])));
    }
    for (const auto& operation : operations) {
      expect_well(operation);
    }
    CHECK_EQ(arrays[1].back(), 2 * static_cast<float>(large));
  }
  CHECK(job.engines[2]->await_calls_for_others(0, 2, patience));
  job.engines[2]->end_join(0);
  all_reduce_everywhere(job, large, 1);
}

TEST(a_rank_of_a_node_that_has_joined_contributes_zeros_to_all_parts) {
  Job job = job_of(4, 2, 0, {0, 0, 2, 2});
  all_reduce_everywhere(job, large, 1);
  static_cast<void>(job.engines[3]->join(0, 30 * second));
  std::vector<std::vector<float>> arrays(3, ramp(large, 1));
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    operations.push_back(job.engines[rank]->submit(of(Collective::all_reduce, "y", arrays[rank], &arrays[rank])));
  }
  for (const auto& operation : operations) {
    expect_well(operation);
  }
  CHECK_EQ(arrays[2].back(), 3 * static_cast<float>(large));
}

TEST(an_abort_reaches_the_others_with_its_reason) {
  for (int round = 0; round < 10; ++round) {
    Job job = job_of(3, 3, 0);
    std::vector<float> array = ramp(large, 0);
    const auto waiting = job.engines[1]->submit(of(Collective::all_reduce, "x", array, &array));
    job.engines[2]->abort("ran out of luck");
    CHECK(outcome(waiting).code == Code::aborted);
    CHECK(waiting->status().message.find("ran out of luck") != std::string::npos);
  }
}

TEST(goodbyes_end_the_job_for_all_after_what_was_called) {
  Job job = job_of(3, 2, 1);
  std::vector<std::vector<float>> arrays(3, ramp(large, 0));
  const auto operations = call_everywhere(job, "x", arrays);
  for (const auto& engine : job.engines) {
    engine->leave();
  }
  for (const auto& operation : operations) {
    expect_well(operation);
  }
  wait_until([&] { return job.ended == job.size() && job.engines[2]->left(); });
  for (const auto& engine : job.engines) {
    engine->close();
  }
  wait_until([&] { return job.servers.jobs().empty(); });
  CHECK_EQ(job.servers.statistics().at("links"), 0U);
  CHECK_EQ(job.servers.statistics().at("buffer_bytes"), 0U);
}

TEST(an_operation_whose_input_is_on_its_way_is_divided_when_it_is_there) {
  Job job = job_of(2, 0, 1);
  std::vector<std::vector<float>> arrays(2, std::vector<float>(large, -1.0F));
  const auto ready = std::make_shared<GateWord>(0);
  const Gate gate{ready, 1, std::make_shared<GateWord>(0), 1, nullptr};
  const auto first = job.engines[0]->submit(of(Collective::all_reduce, "", arrays[0], &arrays[0]), gate);
  const auto second = job.engines[1]->submit(of(Collective::all_reduce, "", arrays[1], &arrays[1]));
  arrays[0].assign(large, 5.0F);
  ready->store(1, std::memory_order_release);
  expect_well(first);
  expect_well(second);
  CHECK_EQ(gate.done->load(), 1U);
  CHECK_EQ(arrays[1].front(), 4.0F);
  CHECK_EQ(arrays[0].back(), 4.0F);
}

TEST(an_operation_whose_input_never_comes_fails_in_all_its_parts) {
  Job job = job_of(2, 0, 1);
  std::vector<std::vector<float>> arrays(2, ramp(large, 0));
  const Gate gate{std::make_shared<GateWord>(0), 1, std::make_shared<GateWord>(0), 1, nullptr};
  Submission late = of(Collective::all_reduce, "x", arrays[0], &arrays[0]);
  late.timeout = second;
  const auto first = job.engines[0]->submit(std::move(late), gate);
  const auto second_one = job.engines[1]->submit(of(Collective::all_reduce, "x", arrays[1], &arrays[1]));
  CHECK(outcome(first).code == Code::failed_on_rank);
  CHECK(outcome(second_one).code == Code::failed_on_rank);
  all_reduce_everywhere(job, large, 1);
}

}  // namespace

RUN_TESTS()
