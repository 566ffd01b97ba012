#include "drivers/sim/workload.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "base/limits.h"
#include "drivers/sim/joins.h"
#include "drivers/sim/troubles.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/local/operation.h"
#include "protocol/worker/operation.h"

namespace shoal::sim {

namespace {

constexpr Time patient = 1800 * second;
constexpr std::int64_t most_bytes = 3000;

// docs/design.md, "Servers anywhere": co-located servers have a weight of n - k, dedicated ones of 2(n - 1), up to a
// factor.
JobConfig make_config(const Shape& shape, std::vector<std::uint32_t>& server_processes) {
  JobConfig config;
  const std::uint32_t n = shape.ranks;
  const std::uint32_t k = shape.dedicated;
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    config.hosts.push_back("host" + std::to_string(rank));
  }
  const auto add = [&](std::string name, std::int32_t rank, std::uint32_t process, std::uint32_t weight) {
    for (std::uint32_t lane = 0; lane < shape.lanes; ++lane) {
      config.server_names.push_back(name);
      config.server_ranks.push_back(rank);
      config.weights.push_back(weight);
      server_processes.push_back(process);
    }
  };
  for (std::uint32_t i = 0; i < k; ++i) {
    add("server" + std::to_string(i), -1, i, k >= n ? 1 : 2 * (n - 1));
  }
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    const std::uint32_t weight = k >= n ? 0 : n - k;
    add("host" + std::to_string(rank), static_cast<std::int32_t>(rank), 0, weight);
  }
  config.segment = 256;
  config.credit = 256;
  config.eager = 256;
  config.small = 128;
  config.peer_timeout = peer_timeout / second;
  return config;
}

Operator random_operator(Random& random, DType dtype) {
  if (dtype == DType::boolean) {
    return random.pick({Operator::min, Operator::max, Operator::product});
  }
  return random.pick({Operator::sum, Operator::mean, Operator::min, Operator::max, Operator::product});
}

std::int64_t random_elements(Random& random, DType dtype) {
  const auto most = most_bytes / static_cast<std::int64_t>(size_of(dtype));
  switch (random.below(8)) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return random.between(1, 7);
    case 3:
    case 4:
      return random.between(1, std::max<std::int64_t>(1, most / 16));
    default:
      return random.between(1, most);
  }
}

std::vector<std::int64_t> random_shape(Random& random, DType dtype, Collective collective) {
  const std::int64_t elements = random_elements(random, dtype);
  if (elements == 1 && random.chance(0.3) &&
      (collective == Collective::all_reduce || collective == Collective::broadcast)) {
    return {};
  }
  if (random.chance(0.5)) {
    return {elements};
  }
  const std::int64_t columns = random.between(1, 5);
  return {(elements + columns - 1) / columns, columns};
}

// All-to-all: rows that go to each member, in bytes.
std::vector<std::int64_t> random_splits(Random& random, std::int64_t rows, std::int64_t row_bytes,
                                        std::size_t members) {
  std::vector<std::int64_t> cuts(members + 1, 0);
  cuts.back() = rows;
  for (std::size_t i = 1; i < members; ++i) {
    cuts[i] = random.between(0, rows);
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int64_t> splits;
  for (std::size_t i = 0; i < members; ++i) {
    splits.push_back((cuts[i + 1] - cuts[i]) * row_bytes);
  }
  return splits;
}

// Each member's own number of rows, and how it holds its arrays.
void vary_members(Random& random, OperationPlan& operation) {
  const std::size_t size = operation.members.size();
  for (MemberPlan& member : operation.members) {
    if (is_gather(member.collective)) {
      const auto most = std::max<std::int64_t>(1, member.shape[0]);
      member.shape[0] = random.chance(0.2) ? 0 : random.between(0, most);
      if (random.chance(0.5)) {
        member.shape[0] = most;
      }
      member.ready_output = random.chance(0.4);
    }
    if (member.collective == Collective::all_to_all) {
      MemberPlan row = member;
      row.shape[0] = 1;
      member.splits = random_splits(random, member.shape[0], static_cast<std::int64_t>(row.bytes()), size);
    } else {
      member.in_place = random.chance(0.5);
    }
    member.no_input = random.chance(0.5);
  }
}

void add_groups(Random& random, Plan& plan) {
  std::vector<GroupPlan>& groups = plan.groups;
  const std::vector<std::uint32_t> all = groups.front().ranks;
  const std::uint64_t count = random.below(5);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (random.chance(0.15)) {
      groups.push_back(GroupPlan(groups.back()));  // the same again is another group
      continue;
    }
    std::vector<std::uint32_t> ranks = all;
    random.shuffle(ranks);
    ranks.resize(static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(all.size()))));
    groups.push_back({ranks, random.pick<const char*>({"", "left", "pipeline"})});
  }
}

// Those at the same place in their nodes: a group for each place that several nodes have.
std::vector<std::uint32_t> add_place_groups(Plan& plan) {
  const std::vector<std::uint32_t>& leaders = plan.config.leaders;
  std::map<std::uint32_t, std::vector<std::uint32_t>> places;
  for (std::uint32_t rank = 0; rank < leaders.size(); ++rank) {
    places[rank - leaders[rank]].push_back(rank);
  }
  std::vector<std::uint32_t> made;
  for (auto& [place, ranks] : places) {
    if (ranks.size() > 1) {
      made.push_back(static_cast<std::uint32_t>(plan.groups.size()));
      plan.groups.push_back({std::move(ranks), "place " + std::to_string(place)});
    }
  }
  return made;
}

// The ranks of all places average at once, as often as drawn.
void average_at_places(Random& random, Plan& plan, const std::vector<std::uint32_t>& groups) {
  const std::int64_t rounds = random.between(1, 6);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (const std::uint32_t group : groups) {
      OperationPlan operation;
      do {
        operation = random_operation(random, plan, group);
      } while (operation.members.front().collective != Collective::all_reduce);
      operation.name = "slice" + std::to_string(round);
      plan.operations.push_back(std::move(operation));
    }
  }
}

// Of a rank that sends beside others of its node.
void choose_rank_limits(Random& random, JobConfig& config) {
  const auto unit = static_cast<std::uint32_t>(limits::shard_alignment);
  config.rank_segment = unit * static_cast<std::uint32_t>(random.between(1, config.segment / unit));
  config.rank_credit = config.rank_segment;
  if (random.chance(0.7)) {
    config.rank_credit = static_cast<std::uint32_t>(
        random.between(config.rank_segment, std::min<std::int64_t>(config.credit, 3 * config.rank_segment)));
  }
}

Timing random_timing(Random& random) {
  Timing timing;
  timing.shortest = random.pick<Time>({0, 1'000, 50'000});
  timing.longest = timing.shortest + random.pick<Time>({0, 1'000, 100'000, 5 * millisecond});
  if (random.chance(0.3)) {
    timing.tail = random.pick<Time>({millisecond, 40 * millisecond, 200 * millisecond});
    timing.tail_chance = random.pick({0.002, 0.02});
  }
  timing.split_chance = random.pick({0.0, 0.2, 0.8});
  return timing;
}

// Where all arrays of an all-reduce lie in the memory of the machine it goes straight from one to the other.
void choose_arenas(Random& random, Plan& plan) {
  for (OperationPlan& operation : plan.operations) {
    if (!plan.is_local(operation.group)) {
      continue;
    }
    const double share = random.pick({0.0, 0.8, 1.0, 1.0});
    for (MemberPlan& member : operation.members) {
      member.in_arena = member.collective == Collective::all_reduce && random.chance(share);
    }
  }
}

void choose_limits(Random& random, JobConfig& config) {
  const auto unit = static_cast<std::uint32_t>(limits::shard_alignment);
  config.segment = unit * static_cast<std::uint32_t>(random.chance(0.3) ? 1 : random.between(1, 16));
  config.credit = config.segment;
  if (random.chance(0.5)) {
    config.credit += static_cast<std::uint32_t>(random.below(4 * config.segment));
  }
  config.small = std::min(config.segment, random.pick<std::uint32_t>({0, 8, 64, 256, 1024}));
  config.eager = random.pick<std::uint32_t>({0, 8, 64, 1024, 4096});
  config.ring = random.chance(0.2);
  config.least_segment =
      random.chance(0.5) ? 0 : unit * static_cast<std::uint32_t>(random.between(1, config.segment / unit));
  config.least_shard = random.chance(0.5) ? 1 : static_cast<std::uint32_t>(random.between(1, 4 * config.segment));
}

// A name that is used once, one of a few that come again, or none.
std::string random_name(Random& random, std::size_t number, bool once) {
  if (once || random.chance(0.4)) {
    return "layer" + std::to_string(number) + ".weight";
  }
  return random.chance(0.5) ? "" : "loss" + std::to_string(random.below(3));
}

void add_operations(Random& random, Plan& plan) {
  const auto count = random.chance(0.02) ? random.between(50, 150) : random.between(1, random.chance(0.6) ? 8 : 30);
  const double troubled = random.chance(0.5) ? 0 : 0.2;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto group = static_cast<std::uint32_t>(random.chance(0.5) ? 0 : random.below(plan.groups.size()));
    OperationPlan operation = random_operation(random, plan, group);
    const bool alone = operation.members.size() == 1;
    const std::uint64_t trouble = alone || !random.chance(troubled) ? 3 : random.below(3);
    operation.name = random_name(random, static_cast<std::size_t>(i), trouble == 2);
    if (trouble == 0) {
      spoil_agreement(random, plan, operation);
    } else if (trouble == 1) {
      fail_some(random, operation);
    } else if (trouble == 2) {
      miss_some(random, operation);
    }
    plan.operations.push_back(std::move(operation));
  }
}

// The rank leaves in the middle of its work; the others hear of it.
void leave_early(Random& random, Plan& plan) {
  const std::size_t rank = random.below(plan.ranks.size());
  auto& steps = plan.ranks[rank].steps;
  const std::size_t kept = random.below(steps.size() + 1);
  for (std::size_t i = kept; i < steps.size(); ++i) {
    OperationPlan& operation = plan.operations[steps[i].operation];
    const auto& members = plan.members(operation);
    const auto index = static_cast<std::size_t>(
        std::find(members.begin(), members.end(), static_cast<std::uint32_t>(rank)) - members.begin());
    operation.members[index].absent = true;
    operation.outcomes.insert(Code::peer_left);
  }
  steps.resize(kept);
}

// Groups with the same members and name are told apart by the order in which they are made: that one stays.
void shuffle_groups(Random& random, const Plan& plan, RankPlan& rank) {
  random.shuffle(rank.groups);
  const auto same = [&](std::uint32_t a, std::uint32_t b) {
    return plan.groups[a].ranks == plan.groups[b].ranks && plan.groups[a].name == plan.groups[b].name;
  };
  for (std::size_t i = 0; i < rank.groups.size(); ++i) {
    for (std::size_t j = i + 1; j < rank.groups.size(); ++j) {
      if (rank.groups[i] > rank.groups[j] && same(rank.groups[i], rank.groups[j])) {
        std::swap(rank.groups[i], rank.groups[j]);
      }
    }
  }
}

// What the record of an operation takes on the member where it takes most.
std::size_t record_of(const Plan& plan, const OperationPlan& operation) {
  std::size_t most = 0;
  for (const MemberPlan& member : operation.members) {
    Submission submission;
    submission.name = operation.name;
    submission.shape = member.shape;
    submission.splits = member.splits;
    submission.failure = member.failure;
    most = std::max(most, worker::record_bytes(submission, plan.config.servers()));
    if (plan.is_local(operation.group)) {
      most = std::max(most, local::record_bytes(submission, plan.config.size()));
    }
  }
  return most;
}

// The least that all but one of the so many largest take, and a byte for the last.
std::size_t room_for(std::vector<std::size_t> records, std::size_t open) {
  std::sort(records.begin(), records.end(), std::greater<>());
  records.resize(std::min(records.size(), open));
  return records.empty() ? 1 : std::accumulate(records.begin(), records.end() - 1, std::size_t{1});
}

// The smallest limit on what is open that this needs.
std::size_t least_open_bytes(const Plan& plan) {
  std::size_t most = 1;
  // What ranks that have joined call for others.
  const bool any_joins = std::any_of(plan.operations.begin(), plan.operations.end(),
                                     [](const OperationPlan& operation) { return operation.name == join_name; });
  for (std::size_t i = 0; any_joins && i < plan.operations.size(); ++i) {
    most += 4 * record_of(plan, plan.operations[i]);
  }
  for (const RankPlan& rank : plan.ranks) {
    std::vector<std::size_t> all;
    // Those that fail before they begin count beside the others, and are open longer than their handles.
    std::vector<std::size_t> failing;
    for (const RankPlan::Step& step : rank.steps) {
      const OperationPlan& operation = plan.operations[step.operation];
      all.push_back(record_of(plan, operation));
      if (operation.outcomes.count(Code::failed_on_rank) > 0) {
        failing.push_back(all.back());
      }
      if (plan.is_local(operation.group) && !operation.outcomes.empty()) {
        // What fails among the ranks of a machine, the worker opens as failed: for other nodes' leaders and for
        // all.
        failing.insert(failing.end(), 2, all.back());
      }
    }
    const std::size_t open = rank.window > 0 ? rank.window : all.size();
    most = std::max({most, room_for(std::move(all), open), room_for(failing, failing.size())});
  }
  return most;
}

}  // namespace

std::uint64_t MemberPlan::bytes() const {
  if (dtype == DType::none) {
    return 0;
  }
  std::uint64_t bytes = size_of(dtype);
  for (std::int64_t dimension : shape) {
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return bytes;
}

bool Plan::holds_server(std::uint32_t rank) const {
  for (std::size_t i = 0; i < config.weights.size(); ++i) {
    if (config.server_ranks[i] == static_cast<std::int32_t>(rank) && (config.weights[i] > 0 || config.standby)) {
      return true;
    }
  }
  return false;
}

bool Plan::has_two_networks() const {
  const auto own = std::find(config.server_ranks.begin(), config.server_ranks.end(), 0) - config.server_ranks.begin();
  const auto first = static_cast<std::size_t>(own);
  return config.lanes_of(static_cast<std::uint32_t>(first)).size() <
         static_cast<std::size_t>(std::count(config.server_ranks.begin(), config.server_ranks.end(), 0));
}

bool Plan::is_local(std::uint32_t group) const {
  const std::vector<std::uint32_t>& sharing = groups[group].ranks;
  if (config.leaders.empty() || sharing.size() < 2) {
    return false;
  }
  const std::uint32_t leader = config.leaders[sharing.front()];
  return sharing.size() == config.size() || std::all_of(sharing.begin(), sharing.end(), [&](std::uint32_t rank) {
           return config.leaders[rank] == leader;
         });
}

void share_machines(Random& random, Plan& plan, std::uint32_t most) {
  JobConfig& config = plan.config;
  config.leaders.clear();
  while (config.leaders.size() < config.size()) {
    const auto first = static_cast<std::uint32_t>(config.leaders.size());
    const auto rest = static_cast<std::int64_t>(config.size() - first);
    const auto count = random.between(1, std::min<std::int64_t>(most, rest));
    config.leaders.insert(config.leaders.end(), static_cast<std::size_t>(count), first);
  }
  if (std::adjacent_find(config.leaders.begin(), config.leaders.end()) == config.leaders.end()) {
    config.leaders.clear();  // every rank is a node of its own
    return;
  }
  // Ranks of a machine have no servers but the first's.
  for (std::size_t i = 0; i < config.weights.size(); ++i) {
    const std::int32_t rank = config.server_ranks[i];
    if (rank >= 0 && config.leaders[static_cast<std::size_t>(rank)] != static_cast<std::uint32_t>(rank)) {
      config.weights[i] = 0;
    }
  }
  if (std::accumulate(config.weights.begin(), config.weights.end(), std::uint64_t{0}) == 0) {
    const auto own = std::find(config.server_ranks.begin(), config.server_ranks.end(), 0);
    config.weights[static_cast<std::size_t>(own - config.server_ranks.begin())] = 1;
  }
}

Plan empty_plan(const Shape& shape) {
  Plan plan;
  plan.config = make_config(shape, plan.server_processes);
  std::vector<std::uint32_t> all(shape.ranks);
  std::iota(all.begin(), all.end(), 0U);
  plan.groups.push_back({std::move(all), ""});
  return plan;
}

void leave_to_dedicated(Plan& plan) {
  for (std::size_t i = 0; i < plan.config.weights.size(); ++i) {
    plan.config.weights[i] = plan.config.server_ranks[i] < 0 ? 1 : 0;
  }
}

// Rank 0's worker grows and shrinks the windows as it goes.
void change_windows(Random& random, Plan& plan) {
  const std::uint32_t least = plan.config.segment;
  const std::uint32_t most = 8 * plan.config.credit;
  for (RankPlan::Step& step : plan.ranks.front().steps) {
    if (random.chance(0.3)) {
      step.credit = random.chance(0.3) ? least : static_cast<std::uint32_t>(random.between(least, most));
      plan.most_credit = std::max(plan.most_credit, step.credit);
      step.competing = random.chance(0.5);
    }
  }
}

OperationPlan random_operation(Random& random, const Plan& plan, std::uint32_t group) {
  OperationPlan operation;
  operation.group = group;
  operation.values = random.next();
  // The ring adds in another order, and rounds at every hop: there every sum is exact.
  operation.rough = !plan.config.ring && random.chance(0.5);
  operation.timeout = patient;
  MemberPlan member;
  member.collective =
      random.pick({Collective::all_reduce, Collective::all_reduce, Collective::all_reduce, Collective::reduce_scatter,
                   Collective::broadcast, Collective::all_gather, Collective::all_to_all, Collective::barrier});
  const std::size_t size = plan.groups[group].ranks.size();
  if (member.collective != Collective::barrier) {
    member.dtype = static_cast<DType>(random.between(1, 13));
    member.shape = random_shape(random, member.dtype, member.collective);
  }
  if (traits_of(member.collective).reduces) {
    member.op = random_operator(random, member.dtype);
  }
  if (member.collective == Collective::broadcast) {
    member.root = static_cast<std::uint32_t>(random.below(size));
  }
  operation.members.assign(size, member);
  vary_members(random, operation);
  if (member.collective == Collective::all_reduce && !plan.config.ring && size > 1 && !plan.is_local(group)) {
    for (MemberPlan& one : operation.members) {
      one.streamed = one.in_place && random.chance(0.3);
    }
  }
  return operation;
}

void schedule(Random& random, Plan& plan, bool shuffled, Time spread) {
  const auto size = plan.config.size();
  plan.ranks.resize(size);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    RankPlan& life = plan.ranks[rank];
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < plan.operations.size(); ++i) {
      const auto& members = plan.members(plan.operations[i]);
      const auto found = std::find(members.begin(), members.end(), rank);
      if (found != members.end() &&
          !plan.operations[i].members[static_cast<std::size_t>(found - members.begin())].absent) {
        order.push_back(i);
      }
    }
    if (shuffled) {
      random.shuffle(order);
      // Operations of one name take the places of that name in their own order.
      std::map<std::pair<std::uint32_t, std::string>, std::vector<std::size_t>> places;
      for (std::size_t at = 0; at < order.size(); ++at) {
        places[{plan.operations[order[at]].group, plan.operations[order[at]].name}].push_back(at);
      }
      for (const auto& [name, at] : places) {
        std::vector<std::size_t> numbers;
        std::transform(at.begin(), at.end(), std::back_inserter(numbers), [&](std::size_t p) { return order[p]; });
        std::sort(numbers.begin(), numbers.end());
        for (std::size_t i = 0; i < at.size(); ++i) {
          order[at[i]] = numbers[i];
        }
      }
    }
    Time when = random.between(0, spread);
    for (std::size_t operation : order) {
      life.steps.push_back({when, operation});
      when += spread == 0 ? 0 : random.between(0, 2 * spread / static_cast<Time>(order.size()));
    }
    life.leave_after = random.chance(0.5) ? 0 : random.between(0, spread);
    for (std::uint32_t group = 1; group < plan.groups.size(); ++group) {
      const auto& ranks = plan.groups[group].ranks;
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
        life.groups.push_back(group);
      }
    }
  }
  plan.config.tables.open = least_open_bytes(plan);
}

Plan random_plan(std::uint64_t seed, bool faults) {
  Random random(seed);
  Shape shape;
  shape.ranks = static_cast<std::uint32_t>(random.chance(0.01) ? 16 : random.between(1, random.chance(0.5) ? 4 : 8));
  shape.dedicated = static_cast<std::uint32_t>(random.between(0, shape.ranks));
  shape.lanes = static_cast<std::uint32_t>(random.chance(0.7) ? 1 : 2);
  Plan plan = empty_plan(shape);
  choose_limits(random, plan.config);
  if (shape.dedicated > 0 && random.chance(0.4)) {
    leave_to_dedicated(plan);
  } else if (random.chance(0.3)) {
    for (std::uint32_t& weight : plan.config.weights) {
      weight = static_cast<std::uint32_t>(random.below(4));
    }
    plan.config.weights[random.below(plan.config.weights.size())] = 1;
  }
  plan.config.standby = random.chance(0.4);
  if (shape.ranks > 1 && !plan.config.ring && random.chance(0.5)) {
    share_machines(random, plan, random.chance(0.5) ? shape.ranks : 3);
  }
  plan.timing = random_timing(random);
  add_groups(random, plan);
  // From numbers of their own, so that all else is as it would be without them.
  Random nodes(~seed);
  const bool has_places = nodes.chance(0.4);
  const std::vector<std::uint32_t> places = has_places ? add_place_groups(plan) : std::vector<std::uint32_t>();
  if (nodes.chance(0.4) || !places.empty()) {
    choose_rank_limits(nodes, plan.config);
  }
  add_operations(random, plan);
  if (!places.empty()) {
    average_at_places(nodes, plan, places);
  }
  const Time spread = random.pick<Time>({0, millisecond, 50 * millisecond, 2 * second, 15 * second});
  const bool shuffled = random.chance(0.7);
  schedule(random, plan, shuffled, spread);
  for (RankPlan& rank : plan.ranks) {
    shuffle_groups(random, plan, rank);
    rank.window = shuffled || random.chance(0.3) ? 0 : static_cast<std::uint32_t>(random.between(1, 4));
    rank.exits_when_left = random.chance(0.5);
  }
  if (random.chance(0.2)) {
    leave_early(random, plan);
  } else if (Random joins(seed ^ 0x6a6f696e); joins.chance(0.3)) {
    add_joins(joins, plan);
  }
  if (Random memory(seed ^ 0x6d656d6f7279); memory.chance(0.2)) {
    lack_memory(memory, plan);
  }
  plan.config.tables.open = least_open_bytes(plan) + (random.chance(0.5) ? 0 : random.below(10'000));
  plan.processes_end = random.chance(0.5);
  add_faults(random, plan, faults, spread);
  if (random.chance(0.3)) {
    change_windows(random, plan);
  }
  plan.server_rate = random.chance(0.7) ? 1 : 0;
  choose_arenas(random, plan);
  if (!faults && random.chance(0.3)) {
    call_some_late(random, plan);
  }
  if (random.chance(0.3)) {
    bring_inputs_late(random, plan);
  }
  if (shape.lanes > 1) {
    spread_over_networks(seed, plan, faults, spread);
  }
  return plan;
}

}  // namespace shoal::sim
