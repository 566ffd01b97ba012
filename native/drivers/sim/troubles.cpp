#include "drivers/sim/troubles.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "protocol/collectives.h"
#include "protocol/keys.h"

namespace shoal::sim {

namespace {

// Whether ranks of one machine carry out the operations of this group, and no network decides on them.
bool is_of_one_machine(const Plan& plan, std::uint32_t group) {
  const std::vector<std::uint32_t>& ranks = plan.groups[group].ranks;
  return plan.is_local(group) && std::all_of(ranks.begin(), ranks.end(), [&](std::uint32_t rank) {
           return plan.config.leaders[rank] == plan.config.leaders[ranks.front()];
         });
}

// All ranks of the member's node call what it calls, which the other nodes do not: by its leader, or each for itself.
void spoil_node(const Plan& plan, OperationPlan& operation, std::size_t member) {
  const std::vector<std::uint32_t>& ranks = plan.groups[operation.group].ranks;
  if (!plan.is_local(operation.group) || is_of_one_machine(plan, operation.group)) {
    return;
  }
  const MemberPlan odd = operation.members[member];
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (plan.config.leaders[ranks[other]] == plan.config.leaders[ranks[member]]) {
      operation.members[other] = odd;
    }
  }
}

RankPlan::Step* step_of(Plan& plan, std::uint32_t rank, std::size_t operation) {
  std::vector<RankPlan::Step>& steps = plan.ranks[rank].steps;
  const auto found = std::find_if(steps.begin(), steps.end(),
                                  [operation](const RankPlan::Step& step) { return step.operation == operation; });
  return found == steps.end() ? nullptr : &*found;
}

// What a job with several servers mostly gets over without an error.
Fault::Kind random_survivable(Random& random) {
  using Kind = Fault::Kind;
  return random.pick({Kind::kill_server, Kind::kill_server, Kind::kill_server, Kind::break_server, Kind::break_server,
                      Kind::break_standby, Kind::partition, Kind::delay_rank, Kind::freeze_rank, Kind::freeze_server,
                      Kind::second_connection});
}

Fault::Kind random_kind(Random& random) {
  using Kind = Fault::Kind;
  return random.pick({Kind::break_link, Kind::break_server, Kind::kill_rank, Kind::kill_in_a_copy, Kind::kill_server,
                      Kind::freeze_rank, Kind::freeze_server, Kind::partition, Kind::partition, Kind::corrupt,
                      Kind::corrupt_elements, Kind::forge, Kind::refuse_connect, Kind::second_connection, Kind::abort});
}

// The first rank from this one on that holds no server, if there is one: the others go on without it.
std::uint32_t without_server(const Plan& plan, std::uint32_t rank) {
  for (std::uint32_t i = 0; i < plan.config.size(); ++i) {
    const std::uint32_t candidate = (rank + i) % plan.config.size();
    if (candidate != 0 && !plan.holds_server(candidate)) {
      return candidate;
    }
  }
  return rank;
}

Fault random_fault(Random& random, const Plan& plan, Time span, bool survivable) {
  using Kind = Fault::Kind;
  Fault fault;
  fault.kind = survivable ? random_survivable(random) : random_kind(random);
  fault.when = random.between(0, span);
  fault.target = static_cast<std::uint32_t>(random.below(1000));
  fault.duration = random.chance(0.5) ? random.between(millisecond, second) : random.between(second, 25 * second);
  if (fault.kind == Kind::partition) {
    // For ever, or so short that nobody may notice.
    const bool breaks = random.chance(survivable ? 0.2 : 0.4);
    fault.duration = breaks ? peer_timeout : std::min(fault.duration, peer_timeout - second);
  } else if (fault.kind == Kind::kill_rank || fault.kind == Kind::kill_in_a_copy || fault.kind == Kind::abort ||
             fault.kind == Kind::refuse_connect) {
    fault.target %= plan.config.size();
    if (random.chance(0.5)) {
      fault.target = without_server(plan, fault.target);
    }
  }
  // A rank that said goodbye may still serve. What it alone knew dies with it or with a server.
  if (fault.kind == Kind::kill_rank && random.chance(0.3)) {
    fault.goodbye_of = fault.target;
  } else if (fault.kind == Kind::kill_server && random.chance(0.4)) {
    fault.goodbye_of = static_cast<std::uint32_t>(random.below(plan.config.size()));
    fault.when = random.chance(0.5) ? 0 : random.between(0, 5 * millisecond);
  }
  return fault;
}

// The servers that are left hear of the goodbye late.
void delay_goodbyes(Random& random, Plan& plan) {
  for (std::size_t i = plan.faults.size(); i > 0; --i) {
    const Fault& fault = plan.faults[i - 1];
    if (fault.kind == Fault::Kind::kill_server && fault.goodbye_of && random.chance(0.5)) {
      plan.faults.push_back({.kind = Fault::Kind::delay_rank,
                             .target = *fault.goodbye_of,
                             .duration = random.between(millisecond, 2 * second),
                             .goodbye_of = fault.goodbye_of});
    }
  }
}

}  // namespace

void spoil_agreement(Random& random, const Plan& plan, OperationPlan& operation) {
  const std::size_t spoiler = random.below(operation.members.size());
  MemberPlan& odd = operation.members[spoiler];
  const bool is_barrier = odd.collective == Collective::barrier;
  const bool two_roots = odd.collective == Collective::broadcast && operation.members.size() > 1;
  const std::uint64_t way = is_barrier ? 1 : random.below(5);
  switch (way) {
    case 0:
      odd.shape.push_back(1);  // the same bytes in another shape
      break;
    case 1:
      if (odd.collective == Collective::barrier) {
        odd.collective = Collective::broadcast;
        odd.dtype = DType::int8;
        odd.shape = {5};
      } else {
        odd.collective = Collective::barrier;
        odd.op = Operator::none;
        odd.dtype = DType::none;
        odd.shape = {};
        odd.root = 0;
      }
      odd.splits.clear();
      break;
    case 2:
      if (two_roots) {
        odd.root = (odd.root + 1) % static_cast<std::uint32_t>(operation.members.size());
        break;
      }
      [[fallthrough]];
    case 3:
      if (traits_of(odd.collective).reduces) {
        odd.op = odd.op == Operator::max ? Operator::min : Operator::max;
        break;
      }
      [[fallthrough]];
    default:
      if (is_gather(odd.collective)) {
        odd.shape.push_back(1);
      } else {
        // Any other of the 13.
        const auto other = (static_cast<std::uint64_t>(odd.dtype) + random.below(12)) % 13 + 1;
        odd.dtype = static_cast<DType>(other);
        odd.op = odd.op == Operator::none ? Operator::none : Operator::max;
      }
  }
  operation.outcomes.insert(Code::mismatch);
  // From numbers of its own, so that all else is as it would be without it.
  if (Random nodes(operation.values); nodes.chance(0.5)) {
    spoil_node(plan, operation, spoiler);
  }
}

void fail_some(Random& random, OperationPlan& operation) {
  MemberPlan& failing = operation.members[random.below(operation.members.size())];
  failing.failure = "the array is not where it should be";
  operation.outcomes.insert(Code::failed_on_rank);
}

void miss_some(Random& random, OperationPlan& operation) {
  operation.members[random.below(operation.members.size())].absent = true;
  operation.timeout = random.between(second, 60 * second);
  operation.outcomes.insert({Code::timeout, Code::peer_left});
}

// Blocks that come along with their sizes have come to others by then, who end well.
void lack_memory(Random& random, Plan& plan) {
  for (OperationPlan& operation : plan.operations) {
    MemberPlan& lacking = operation.members[random.below(operation.members.size())];
    const bool goes_up = plan.is_local(operation.group) && !is_of_one_machine(plan, operation.group) &&
                         lacking.collective == Collective::all_gather;
    if (!goes_up || !operation.outcomes.empty() || is_of_join(operation.name) || lacking.ready_output ||
        !random.chance(0.5)) {
      continue;
    }
    lacking.no_memory = true;
    operation.outcomes.insert(Code::failed_on_rank);
    const auto add = [](std::uint64_t sum, const MemberPlan& member) { return sum + member.bytes(); };
    if (std::accumulate(operation.members.begin(), operation.members.end(), std::uint64_t{0}, add) <=
        plan.config.small) {
      operation.outcomes.insert(Code::ok);
    }
  }
}

void call_some_late(Random& random, Plan& plan) {
  const Time near = 4 * plan.timing.longest + 1;
  for (std::size_t number = 0; number < plan.operations.size(); ++number) {
    OperationPlan& operation = plan.operations[number];
    const std::vector<std::uint32_t>& members = plan.members(operation);
    const std::uint32_t late = members[random.below(members.size())];
    if (is_of_join(operation.name) || !is_of_one_machine(plan, operation.group) || !operation.outcomes.empty() ||
        !random.chance(0.3)) {
      continue;
    }
    Time last = 0;  // of the others' calls
    for (const std::uint32_t rank : members) {
      const RankPlan::Step* const step = step_of(plan, rank, number);
      last = rank == late || step == nullptr ? last : std::max(last, step->when);
    }
    operation.timeout = random.between(3 * second, 6 * second);
    operation.outcomes = {Code::ok, Code::timeout};
    operation.ends_alike = true;
    if (RankPlan::Step* const step = step_of(plan, late, number)) {
      step->when = last + operation.timeout + random.between(-near, near);
    }
  }
}

// An operation follows lower ones only, on every rank: whatever the order of calls, somebody can always go on.
void bring_inputs_late(Random& random, Plan& plan) {
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    std::vector<std::size_t> called;
    for (const RankPlan::Step& step : plan.ranks[rank].steps) {
      OperationPlan& operation = plan.operations[step.operation];
      const std::vector<std::uint32_t>& members = plan.members(operation);
      const auto index = std::find(members.begin(), members.end(), rank) - members.begin();
      MemberPlan& member = operation.members[static_cast<std::size_t>(index)];
      // Whoever has not joined well calls nothing after that.
      const bool joins = operation.name == join_name || operation.after_join;
      const bool may_be_late = !joins && !member.streamed && member.failure.empty() && !operation.ends_alike;
      if (may_be_late && random.chance(0.5)) {
        member.late_input = true;
        std::vector<std::size_t> lower;
        std::copy_if(called.begin(), called.end(), std::back_inserter(lower),
                     [&](std::size_t other) { return other < step.operation; });
        // Where ranks differ, what has to end before might not.
        if (operation.outcomes.empty() && !lower.empty() && random.chance(0.5)) {
          member.follows = lower[random.below(lower.size())];
        }
      }
      if (operation.outcomes.empty() && !joins) {
        called.push_back(step.operation);
      }
    }
  }
}

void add_faults(Random& random, Plan& plan, bool faults, Time spread) {
  const bool survivable = random.chance(0.4);
  for (std::uint64_t i = faults ? random.between(1, random.chance(survivable ? 0.4 : 0.7) ? 1 : 3) : 0; i > 0; --i) {
    const Time span =
        random.chance(0.5) ? 2 * spread + millisecond : random.pick<Time>({millisecond, 20 * millisecond});
    plan.faults.push_back(random_fault(random, plan, span, survivable));
  }
  delay_goodbyes(random, plan);
}

// From numbers of their own, so that all else is as it would be without them.
void spread_over_networks(std::uint64_t seed, Plan& plan, bool faults, Time spread) {
  Random random(seed ^ 0x7261696c);
  if (!random.chance(0.5)) {
    return;
  }
  JobConfig& config = plan.config;
  for (std::size_t i = 0; i < config.server_names.size(); ++i) {
    config.server_names[i] += i % 2 == 0 ? " (eth0)" : " (eth1)";
  }
  if (faults && random.chance(0.5)) {
    plan.faults.push_back({.kind = Fault::Kind::break_network,
                           .when = random.between(0, 2 * spread + millisecond),
                           .target = static_cast<std::uint32_t>(random.below(config.size())),
                           .duration = static_cast<Time>(random.below(2))});
  }
}

}  // namespace shoal::sim
