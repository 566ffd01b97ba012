#include "drivers/sim/joins.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "drivers/sim/troubles.h"
#include "protocol/keys.h"
#include "wire/opening.h"

namespace shoal::sim {

namespace {

bool is_of(const Plan& plan, const RankPlan::Step& step, std::uint32_t group) {
  return plan.operations[step.operation].group == group;
}

MemberPlan& member_at(Plan& plan, std::size_t operation, std::uint32_t rank) {
  const std::vector<std::uint32_t>& members = plan.members(plan.operations[operation]);
  const auto index = std::find(members.begin(), members.end(), rank) - members.begin();
  return plan.operations[operation].members[static_cast<std::size_t>(index)];
}

// Where something must go wrong everybody calls, and where somebody never calls nobody joins.
bool can_join(const Plan& plan, std::uint32_t group) {
  return plan.groups[group].ranks.size() > 1 &&
         std::none_of(plan.operations.begin(), plan.operations.end(), [group](const OperationPlan& operation) {
           return operation.group == group && std::any_of(operation.members.begin(), operation.members.end(),
                                                          [](const MemberPlan& member) { return member.absent; });
         });
}

// The rank's calls in the group from the `kept`th on are made for it.
void cut(Plan& plan, std::uint32_t rank, std::uint32_t group, std::size_t kept) {
  std::vector<RankPlan::Step>& steps = plan.ranks[rank].steps;
  std::size_t least = 0;
  std::size_t count = 0;
  for (const RankPlan::Step& step : steps) {
    if (is_of(plan, step, group)) {
      ++count;
      least = plan.operations[step.operation].outcomes.empty() ? least : count;
    }
  }
  kept = std::max(kept, least);
  std::size_t seen = 0;
  std::erase_if(steps, [&](const RankPlan::Step& step) {
    const bool goes = is_of(plan, step, group) && ++seen > kept;
    if (goes) {
      MemberPlan& member = member_at(plan, step.operation, rank);
      member.joined = true;
      member.in_place = true;
      member.streamed = member.ready_output = member.late_input = member.no_input = false;
    }
    return goes;
  });
}

// The join comes at any time after the rank's last call in the group.
void add_step(Random& random, Plan& plan, std::uint32_t rank, std::uint32_t group, std::size_t join) {
  std::vector<RankPlan::Step>& steps = plan.ranks[rank].steps;
  const auto last =
      std::find_if(steps.rbegin(), steps.rend(), [&](const RankPlan::Step& step) { return is_of(plan, step, group); });
  const auto least = steps.rend() - last;
  const auto at = random.between(least, std::ssize(steps));
  const Time before = at == 0 ? 0 : steps[static_cast<std::size_t>(at - 1)].when;
  const Time when = at == std::ssize(steps) ? before + (random.chance(0.5) ? 0 : random.between(0, second)) : before;
  steps.insert(steps.begin() + at, {when, join});
}

// Of an operation that all would join before: one calls it, and so all that it calls before it.
void keep_a_caller(Random& random, Plan& plan, std::size_t operation) {
  OperationPlan& planned = plan.operations[operation];
  const bool has_one = std::any_of(planned.members.begin(), planned.members.end(),
                                   [](const MemberPlan& member) { return !member.joined; });
  if (has_one) {
    return;
  }
  // The last step of this rank in the group, whatever its order was: numbers of one name ascend.
  const std::uint32_t rank = plan.members(planned)[random.below(planned.members.size())];
  const Time when = plan.ranks[rank].steps.empty() ? 0 : plan.ranks[rank].steps.back().when;
  for (std::size_t number = 0; number <= operation; ++number) {
    const OperationPlan& other = plan.operations[number];
    if (other.group == planned.group && other.name == planned.name && member_at(plan, number, rank).joined) {
      member_at(plan, number, rank).joined = false;
      plan.ranks[rank].steps.push_back({when, number});
    }
  }
}

// One of the two operations in which joined ranks wait for each other.
OperationPlan join_in(Random& random, const Plan& plan, std::uint32_t group, Collective collective) {
  OperationPlan join;
  join.group = group;
  // Assigning a literal makes gcc 12 warn of what cannot be.
  join.name = std::string(collective == Collective::all_gather ? join_name : joined_name);
  join.values = random.next();
  join.timeout = 1800 * second;
  MemberPlan member;
  member.collective = collective;
  if (collective == Collective::all_gather) {
    member.dtype = DType::int64;
    member.shape = {2};
  }
  join.members.assign(plan.groups[group].ranks.size(), member);
  return join;
}

// With a name that may have been used before, if nothing under it has failed: a rank that has called something else
// than the others may not have heard of that (docs/decisions/joined-ranks.md).
void add_after_join(Random& random, Plan& plan, std::uint32_t group) {
  OperationPlan operation = random_operation(random, plan, group);
  const bool all_well =
      std::none_of(plan.operations.begin(), plan.operations.end(),
                   [group](const OperationPlan& other) { return other.group == group && !other.outcomes.empty(); });
  operation.name = all_well ? random.pick<const char*>({"", "", "loss0", "loss1", "after"})
                            : "after" + std::to_string(plan.operations.size());
  operation.after_join = true;
  plan.operations.push_back(std::move(operation));
  for (const std::uint32_t rank : plan.groups[group].ranks) {
    std::vector<RankPlan::Step>& steps = plan.ranks[rank].steps;
    const Time wait = random.chance(0.5) ? 0 : random.between(0, 50 * millisecond);
    steps.push_back({steps.back().when + wait, plan.operations.size() - 1});
  }
}

}  // namespace

void add_joins(Random& random, Plan& plan) {
  for (std::uint32_t group = 0; group < plan.groups.size(); ++group) {
    if (!can_join(plan, group) || !random.chance(0.6)) {
      continue;
    }
    for (const std::uint32_t rank : plan.groups[group].ranks) {
      const std::vector<RankPlan::Step>& steps = plan.ranks[rank].steps;
      const auto count = std::count_if(steps.begin(), steps.end(),
                                       [&](const RankPlan::Step& step) { return is_of(plan, step, group); });
      if (random.chance(0.6)) {
        cut(plan, rank, group, static_cast<std::size_t>(random.between(0, count)));
      }
    }
    for (std::size_t number = 0; number < plan.operations.size(); ++number) {
      if (plan.operations[number].group == group) {
        keep_a_caller(random, plan, number);
      }
    }
    for (OperationPlan& operation : plan.operations) {
      if (operation.group != group) {
        continue;
      }
      const Collective collective = operation.members.front().collective;
      const bool any = std::any_of(operation.members.begin(), operation.members.end(),
                                   [](const MemberPlan& member) { return member.joined; });
      if (any && collective != Collective::all_reduce && collective != Collective::barrier) {
        operation.outcomes.insert(Code::failed_on_rank);
      }
    }
    const std::size_t join = plan.operations.size();
    plan.operations.push_back(join_in(random, plan, group, Collective::all_gather));
    plan.operations.push_back(join_in(random, plan, group, Collective::barrier));
    for (const std::uint32_t rank : plan.groups[group].ranks) {
      add_step(random, plan, rank, group, join);
      plan.ranks[rank].window = 0;  // what it calls for others counts for none
    }
  }
  // When all joins of all ranks have begun, so that none holds up another.
  for (std::uint32_t group = 0; group < plan.groups.size(); ++group) {
    for (std::int64_t count = join_of(plan, group) ? random.between(0, 3) : 0; count > 0; --count) {
      add_after_join(random, plan, group);
    }
  }
}

std::optional<std::size_t> join_of(const Plan& plan, std::uint32_t group) {
  for (std::size_t number = 0; number < plan.operations.size(); ++number) {
    if (plan.operations[number].group == group && plan.operations[number].name == join_name) {
      return number;
    }
  }
  return std::nullopt;
}

std::string Told::sent(const End& from, const wire::Header& header, const Bytes& owned, bool forgets) {
  if (from.kind != LinkKind::server || (header.type != wire::Type::join && header.type != wire::Type::called)) {
    return "";
  }
  Link& link = links_[from.is_client ? from.id : from.other->id];
  if (from.is_client) {
    Hash128 group;
    if (wire::decode_join(owned, group).ok() && (header.flags & wire::flag_over) == 0) {
      link.groups.insert(group);
    }
    return "";
  }
  wire::Opening opening;
  if (const Status status = wire::decode_called(owned, opening); !status.ok()) {
    return status.message;
  }
  if (!link.groups.contains(opening.group)) {
    return "it is told of a call in a group in which it has not joined";
  }
  return link.calls.insert({opening.group, opening.key}).second || forgets ? "" : "it is told twice of one call";
}

}  // namespace shoal::sim
