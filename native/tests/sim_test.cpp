// The product's machines on the simulated network: random jobs by their seeds, and scenarios that must come out in one
// certain way. A failing seed is replayed by `shoal_simulate --seed N --trace`.
#include <algorithm>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "drivers/sim/simulation.h"
#include "protocol/collectives.h"

using namespace shoal;
using sim::Fault;
using sim::Finish;
using sim::MemberPlan;
using sim::OperationPlan;
using sim::Outcome;
using sim::Plan;
using sim::Random;
using sim::RankPlan;

namespace {

constexpr std::uint64_t random_jobs = 1000;

Outcome simulate(const Plan& plan, std::uint64_t seed) {
  sim::Simulation simulation(plan, seed, nullptr);
  Outcome outcome = simulation.run();
  if (!outcome.violation.empty()) {
    std::cerr << "schedule " << seed << ": " << outcome.violation << "\n";
  }
  return outcome;
}

void simulate_random_jobs(bool faults) {
  std::uint64_t straight = 0;
  for (std::uint64_t seed = 0; seed < 2 * random_jobs; ++seed) {
    // Even seeds are calm, odd ones are not, as for shoal_simulate.
    if ((seed % 2 == 1) != faults) {
      continue;
    }
    sim::Simulation simulation(sim::random_plan(seed, faults), seed, nullptr);
    const Outcome outcome = simulation.run();
    if (!outcome.violation.empty()) {
      std::cerr << "seed " << seed << ": " << outcome.violation << "\nreplay: shoal_simulate --seed " << seed
                << " --trace\n";
    }
    CHECK(outcome.violation.empty());
    straight += outcome.straight;
  }
  CHECK(straight > random_jobs / 2);
}

// An all-reduce of `elements` float32 by all ranks.
OperationPlan all_reduce(const Plan& plan, const std::string& name, std::int64_t elements) {
  OperationPlan operation;
  operation.name = name;
  operation.values = 1000 * plan.operations.size();
  operation.rough = true;
  operation.timeout = 1800 * second;
  MemberPlan member;
  member.collective = Collective::all_reduce;
  member.op = Operator::mean;
  member.dtype = DType::float32;
  member.shape = {elements};
  operation.members.assign(plan.config.size(), member);
  return operation;
}

Plan job(std::uint32_t ranks, std::uint32_t dedicated) { return sim::empty_plan({ranks, dedicated, 1}); }

// How each rank's part in an operation ended.
std::vector<Finish> finishes_of(const Outcome& outcome, std::size_t operation) {
  std::vector<Finish> found;
  std::copy_if(outcome.finishes.begin(), outcome.finishes.end(), std::back_inserter(found),
               [operation](const Finish& finish) { return finish.operation == operation; });
  return found;
}

bool names(const std::string& message, const std::string& what) { return message.find(what) != std::string::npos; }

}  // namespace

TEST(random_jobs_get_right_answers) { simulate_random_jobs(false); }

TEST(random_faults_end_in_errors_and_never_in_waiting) { simulate_random_jobs(true); }

TEST(a_seed_replays_exactly) {
  std::set<std::uint64_t> digests;
  int others = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Plan plan = sim::random_plan(seed, seed % 2 == 1);
    const std::uint64_t digest = sim::Simulation(plan, seed, nullptr).run().digest;
    CHECK_EQ(sim::Simulation(plan, seed, nullptr).run().digest, digest);
    others += sim::Simulation(plan, seed + 1, nullptr).run().digest != digest ? 1 : 0;
    digests.insert(digest);
  }
  CHECK_EQ(digests.size(), 100U);
  CHECK(others > 50);  // with one rank, or without delays, there is only one schedule
}

TEST(ranks_with_400_operations_open_in_orders_of_their_own_and_the_smallest_limits_get_right_answers) {
  for (std::uint32_t servers = 0; servers <= 4; ++servers) {
    Random random(servers);
    Plan plan = job(4, servers);
    plan.config.segment = plan.config.credit = 64;
    plan.config.small = plan.config.eager = 0;
    for (int i = 0; i < 400; ++i) {
      plan.operations.push_back(all_reduce(plan, "layer" + std::to_string(i), random.between(1, 60)));
    }
    sim::schedule(random, plan, true, 0);
    CHECK(plan.config.tables.open < limits::open_bytes / 100);
    const Outcome outcome = simulate(plan, servers);
    CHECK(outcome.violation.empty());
    CHECK_EQ(outcome.finishes.size(), 1600U);
    CHECK(std::all_of(outcome.finishes.begin(), outcome.finishes.end(), [](const Finish& f) { return f.status.ok(); }));
  }
}

// One rank is far ahead of the others: what its servers have no room for fails, on all ranks alike, and all else is
// right.
TEST(servers_without_room_for_all_that_is_open_fail_the_rest_for_all_members) {
  std::size_t failed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Plan plan = job(3, static_cast<std::uint32_t>(seed % 4));
    plan.config.tables.server = 50'000;
    for (int i = 0; i < 40; ++i) {
      OperationPlan operation = all_reduce(plan, "layer" + std::to_string(i), random.between(1, 600));
      operation.outcomes = {Code::ok, Code::limit};
      plan.operations.push_back(std::move(operation));
    }
    sim::schedule(random, plan, true, 0);
    for (RankPlan::Step& step : plan.ranks.back().steps) {
      step.when += 5 * second;
    }
    const Outcome outcome = simulate(plan, seed);
    CHECK(outcome.violation.empty());
    for (std::size_t operation = 0; operation < plan.operations.size(); ++operation) {
      const std::vector<Finish> finishes = finishes_of(outcome, operation);
      CHECK_EQ(finishes.size(), 3U);
      const auto is_full = [](const Finish& finish) { return finish.status.code == Code::limit; };
      const auto count = std::count_if(finishes.begin(), finishes.end(), is_full);
      CHECK(count == 0 || count == 3);
      failed += count > 0 ? 1 : 0;
      CHECK(std::all_of(finishes.begin(), finishes.end(), [&](const Finish& finish) {
        return finish.status.ok() || names(finish.status.message, "50000 bytes (tables_bytes)");
      }));
    }
  }
  CHECK(failed > 100);
}

TEST(disagreement_is_a_mismatch_on_every_rank_within_a_second_and_the_job_goes_on) {
  for (int what = 0; what < 6; ++what) {
    Random random(static_cast<std::uint64_t>(what));
    Plan plan = job(4, 2);
    plan.operations.push_back(all_reduce(plan, "weight", 500));
    OperationPlan& operation = plan.operations.back();
    if (what >= 4) {
      for (MemberPlan& member : operation.members) {
        member.collective = Collective::broadcast;
        member.op = Operator::none;
      }
    }
    MemberPlan& odd = operation.members[2];
    switch (what) {
      case 0:
        odd.shape = {20, 25};
        break;
      case 1:
        odd.shape = {3};
        break;
      case 2:
        odd.dtype = DType::float64;
        break;
      case 3:
        odd.op = Operator::sum;
        break;
      case 4:
        odd.root = 1;
        break;
      default:
        odd.collective = Collective::barrier;
        odd.dtype = DType::none;
        odd.shape = {};
        break;
    }
    operation.outcomes = {Code::mismatch};
    plan.operations.push_back(all_reduce(plan, "weight", 500));
    sim::schedule(random, plan, false, second / 10);
    const Outcome outcome = simulate(plan, static_cast<std::uint64_t>(what));
    CHECK(outcome.violation.empty());
    const std::vector<Finish> finishes = finishes_of(outcome, 0);
    CHECK_EQ(finishes.size(), 4U);
    for (const Finish& finish : finishes) {
      CHECK(finish.when < plan.ranks[finish.rank].steps[0].when + second);
      CHECK(names(finish.status.message, "'weight'"));
      CHECK(names(finish.status.message, "rank 2 (host2)"));
      CHECK(names(finish.status.message, "(host0)"));
    }
    const std::vector<Finish> next = finishes_of(outcome, 1);
    CHECK_EQ(next.size(), 4U);
    CHECK(std::all_of(next.begin(), next.end(), [](const Finish& finish) { return finish.status.ok(); }));
  }
}

// By way of the leaders' group, and by each rank for itself.
TEST(nodes_that_call_different_kinds_hear_within_a_second_which_ranks_called_what) {
  std::uint64_t seed = 0;
  for (const Collective up : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    for (const Collective flat : {Collective::broadcast, Collective::all_to_all, Collective::barrier}) {
      for (const std::int64_t elements : {8, 500}) {
        Random random(++seed);
        Plan plan = job(5, 2);
        sim::leave_to_dedicated(plan);
        plan.config.leaders = {0, 0, 2, 2, 4};
        plan.operations.push_back(all_reduce(plan, "weight", elements));
        OperationPlan& operation = plan.operations.back();
        for (std::size_t rank = 0; rank < 5; ++rank) {
          MemberPlan& member = operation.members[rank];
          member.collective = rank / 2 == 1 ? flat : up;
          member.op = rank / 2 == 1 || up == Collective::all_gather ? Operator::none : Operator::mean;
          if (member.collective == Collective::all_to_all) {
            member.splits = {4 * elements, 0, 0, 0, 0};
          } else if (member.collective == Collective::barrier) {
            member.dtype = DType::none;
            member.shape = {};
          }
        }
        operation.outcomes = {Code::mismatch};
        plan.operations.push_back(all_reduce(plan, "weight", 500));
        sim::schedule(random, plan, false, second / 10);
        const Outcome outcome = simulate(plan, seed);
        CHECK(outcome.violation.empty());
        const std::vector<Finish> finishes = finishes_of(outcome, 0);
        CHECK_EQ(finishes.size(), 5U);
        const std::string one = "ranks 0 (host0), 1 (host1), 4 (host4) called " + std::string(name_of(up));
        const std::string other = "ranks 2 (host2), 3 (host3) called " + std::string(name_of(flat));
        for (const Finish& finish : finishes) {
          CHECK(finish.when < plan.ranks[finish.rank].steps[0].when + second);
          CHECK(names(finish.status.message, "'weight'"));
          CHECK(names(finish.status.message, one));
          CHECK(names(finish.status.message, other));
        }
        const std::vector<Finish> next = finishes_of(outcome, 1);
        CHECK_EQ(next.size(), 5U);
        CHECK(std::all_of(next.begin(), next.end(), [](const Finish& finish) { return finish.status.ok(); }));
      }
    }
  }
}

TEST(a_dead_rank_ends_what_needs_it_at_once_and_nothing_else) {
  Random random(1);
  Plan plan = job(4, 4);
  plan.groups.push_back({{0, 1, 3}, "without 2"});
  plan.operations.push_back(all_reduce(plan, "all", 5000));
  plan.operations.push_back(all_reduce(plan, "some", 5000));
  plan.operations.back().group = 1;
  plan.operations.back().members.resize(3);
  sim::schedule(random, plan, false, 0);
  plan.ranks[2].steps.clear();
  plan.operations[0].members[2].absent = true;
  plan.ranks[2].leave_after = 3600 * second;
  plan.operations[0].outcomes = {Code::peer_lost};
  plan.faults.push_back({Fault::Kind::kill_rank, second, 2, 0});
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  const std::vector<Finish> ended = finishes_of(outcome, 0);
  CHECK_EQ(ended.size(), 3U);
  for (const Finish& finish : ended) {
    CHECK(finish.status.code == Code::peer_lost);
    CHECK_EQ(finish.status.rank, 2);
    CHECK(names(finish.status.message, "rank 2 (host2)"));
    CHECK(finish.when < 2 * second);
  }
  CHECK_EQ(finishes_of(outcome, 1).size(), 3U);
}

TEST(the_others_go_on_without_the_server_of_a_rank_that_has_left_and_died) {
  Random random(1);
  Plan plan = job(4, 0);
  plan.groups.push_back({{0, 1, 3}, "without 2"});
  plan.operations.push_back(all_reduce(plan, "weight", 5000));
  plan.operations.back().group = 1;
  plan.operations.back().members.resize(3);
  sim::schedule(random, plan, false, 0);
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    plan.ranks[rank].steps[0].when = 2 * second;
  }
  plan.faults.push_back({Fault::Kind::kill_rank, second, 2, 0, 2});
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  CHECK_EQ(outcome.finishes.size(), 3U);
  for (const Finish& finish : outcome.finishes) {
    CHECK(finish.status.ok());
    CHECK(finish.when < 3 * second);
  }
}

TEST(credit_that_a_dead_rank_has_tied_up_comes_back_to_the_others) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Plan plan = job(4, 2);
    sim::leave_to_dedicated(plan);
    plan.config.segment = plan.config.credit = 256;
    plan.groups.push_back({{3, 0, 1}, "without 2"});
    for (int i = 0; i < 20; ++i) {
      plan.operations.push_back(all_reduce(plan, "layer" + std::to_string(i), 400));
      if (i % 2 == 1) {
        plan.operations.back().group = 1;
        plan.operations.back().members.resize(3);
      }
    }
    sim::schedule(random, plan, true, 0);
    plan.faults.push_back({Fault::Kind::kill_rank, random.between(0, second / 200), 2, 0});
    // What does not need the dead rank must end well: the simulation checks that.
    CHECK(simulate(plan, seed).violation.empty());
  }
}

// Results are compared with those of an undisturbed run, bit for bit, by the simulation.
TEST(servers_that_die_one_after_the_other_change_no_bit_and_end_nothing) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Plan plan = job(4, 4);
    plan.config.standby = seed % 3 == 0;
    const int deaths = plan.config.standby ? 4 : 3;
    for (int i = 0; i < 6; ++i) {
      plan.operations.push_back(all_reduce(plan, "layer" + std::to_string(i), 2000));
      for (MemberPlan& member : plan.operations.back().members) {
        member.in_place = i % 2 == 0;
      }
    }
    sim::schedule(random, plan, true, second / 1000);
    const Time spread = seed % 2 == 0 ? second / 50 : second / 1000;
    for (std::uint32_t server = 0; server < static_cast<std::uint32_t>(deaths); ++server) {
      plan.faults.push_back({Fault::Kind::kill_server, random.between(0, spread), server, 0});
    }
    const Outcome outcome = simulate(plan, seed);
    CHECK(outcome.violation.empty());
    CHECK_EQ(outcome.finishes.size(), 24U);
    for (const Finish& finish : outcome.finishes) {
      CHECK(finish.status.ok());
      CHECK(finish.when < second / 2);
    }
  }
}

TEST(the_death_of_the_last_server_ends_everything_within_a_second) {
  Random random(1);
  Plan plan = job(4, 1);
  sim::leave_to_dedicated(plan);
  plan.operations.push_back(all_reduce(plan, "weight", 5000));
  sim::schedule(random, plan, false, 0);
  plan.ranks[3].steps[0].when = 2 * second;
  plan.operations[0].outcomes = {Code::peer_lost};
  plan.faults.push_back({Fault::Kind::kill_server, second, 0, 0});
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  CHECK_EQ(outcome.finishes.size(), 4U);
  for (const Finish& finish : outcome.finishes) {
    CHECK(finish.when < 2 * second + second / 10);
    CHECK(names(finish.status.message, "server0"));
  }
}

TEST(who_is_late_is_named_after_ten_seconds) {
  Random random(1);
  Plan plan = job(3, 1);
  plan.operations.push_back(all_reduce(plan, "weight", 10));
  sim::schedule(random, plan, false, 0);
  plan.ranks[1].steps[0].when = 15 * second;
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  CHECK_EQ(outcome.warnings.size(), 2U);
  for (const std::string& warning : outcome.warnings) {
    CHECK(names(warning, "'weight'"));
    CHECK(names(warning, "rank 1 (host1)"));
  }
}

TEST(a_warning_tells_what_is_late_with_what_and_what_it_did_last) {
  Random random(1);
  Plan plan = job(3, 1);
  for (const char* name : {"loss", "weight", "bias"}) {
    plan.operations.push_back(all_reduce(plan, name, 5000));  // at every server
  }
  sim::schedule(random, plan, false, 0);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 1; i < 3; ++i) {
      plan.ranks[rank].steps[i].when = rank == 1 ? 35 * second : second;
    }
  }
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  CHECK_EQ(outcome.warnings.size(), 4U);  // after 10 s and after 20 s, on two ranks: one for both operations
  for (const std::string& warning : outcome.warnings) {
    CHECK(names(warning, "2 operations (allreduce 'weight', allreduce 'bias')"));
    CHECK(names(warning, "rank 1 (host1) has not called it (the servers asked last heard of it "));
    CHECK(names(warning, "ago, after it called allreduce 'loss'); every other rank has called it"));
  }
  CHECK(names(outcome.warnings[0], "for 10.0 s"));
  CHECK(names(outcome.warnings[3], "for 20.0 s"));
}

TEST(who_never_calls_is_named_when_the_time_is_out) {
  Random random(1);
  Plan plan = job(3, 1);
  plan.operations.push_back(all_reduce(plan, "weight", 10));
  plan.operations.back().members[1].absent = true;
  plan.operations.back().timeout = 30 * second;
  plan.operations.back().outcomes = {Code::timeout};
  sim::schedule(random, plan, false, 0);
  plan.ranks[1].leave_after = 60 * second;
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  CHECK_EQ(outcome.finishes.size(), 2U);
  for (const Finish& finish : outcome.finishes) {
    CHECK(finish.when >= 30 * second && finish.when < 31 * second);
    CHECK(names(finish.status.message, "'weight'"));
    CHECK(names(finish.status.message, "rank 1 (host1)"));
  }
}

TEST(a_rank_that_has_left_normally_is_named_to_those_who_still_need_it) {
  Random random(1);
  Plan plan = job(3, 0);
  plan.operations.push_back(all_reduce(plan, "weight", 10));
  plan.operations.back().members[1].absent = true;
  plan.operations.back().outcomes = {Code::peer_left};
  sim::schedule(random, plan, false, 0);
  const Outcome outcome = simulate(plan, 1);
  CHECK(outcome.violation.empty());
  CHECK_EQ(outcome.finishes.size(), 2U);
  for (const Finish& finish : outcome.finishes) {
    CHECK_EQ(finish.status.rank, 1);
    CHECK(names(finish.status.message, "rank 1 (host1)"));
    CHECK(names(finish.status.message, "left"));
  }
}

TEST(the_number_of_servers_and_the_schedule_change_no_bit) {
  // Results are compared with one sum in the order of the ranks, whatever the servers and the seed.
  for (std::uint32_t servers = 0; servers <= 5; ++servers) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      Random random(seed);
      Plan plan = job(5, servers);
      plan.operations.push_back(all_reduce(plan, "weight", 3001));
      sim::schedule(random, plan, false, second / 1000);
      CHECK(simulate(plan, seed).violation.empty());
    }
  }
}

TEST(arrays_that_all_ranks_of_a_machine_reach_are_added_up_where_they_lie) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Plan plan = job(4, 2);
    sim::leave_to_dedicated(plan);
    plan.config.leaders =
        seed % 2 == 0 ? std::vector<std::uint32_t>{0, 0, 0, 0} : std::vector<std::uint32_t>{0, 0, 2, 2};
    for (int i = 0; i < 6; ++i) {
      plan.operations.push_back(all_reduce(plan, "layer" + std::to_string(i), random.between(100, 700)));
      for (MemberPlan& member : plan.operations.back().members) {
        member.in_arena = true;
        member.in_place = random.chance(0.5);
      }
    }
    // One array of the last is elsewhere, so all of that go through slots: on its machine.
    plan.operations.back().members[1].in_arena = false;
    sim::schedule(random, plan, true, second / 1000);
    const Outcome outcome = simulate(plan, seed);
    CHECK(outcome.violation.empty());
    CHECK_EQ(outcome.finishes.size(), 24U);
    CHECK_EQ(outcome.straight, seed % 2 == 0 ? 20U : 22U);
  }
}

// Who hears first of a death ends its operations, and its program goes on with its arrays, while others still add them
// up: what these find is no result.
TEST(no_sum_counts_that_was_made_of_an_array_whose_operation_has_failed) {
  std::size_t well = 0;
  std::size_t lost = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    Plan plan = job(4, 2);
    sim::leave_to_dedicated(plan);
    plan.config.leaders = {0, 0, 0, 0};
    plan.timing.longest = second / 1000;
    plan.operations.push_back(all_reduce(plan, "weight", 700));
    for (MemberPlan& member : plan.operations.back().members) {
      member.in_arena = true;
    }
    sim::schedule(random, plan, false, 0);
    plan.faults.push_back({Fault::Kind::kill_rank, random.between(0, 8 * plan.timing.longest), 3, 0});
    const Outcome outcome = simulate(plan, seed);
    CHECK(outcome.violation.empty());
    for (const Finish& finish : outcome.finishes) {
      ++(finish.status.ok() ? well : lost);
    }
  }
  CHECK(well > 300);
  CHECK(lost > 300);
}

RUN_TESTS()
