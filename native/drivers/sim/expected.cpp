#include "drivers/sim/expected.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "drivers/sim/values.h"

namespace shoal::sim {

namespace {

// The part of one member's input that another member gets in an all-to-all.
std::size_t split_offset(const MemberPlan& from, std::size_t to) {
  return static_cast<std::size_t>(
      std::accumulate(from.splits.begin(), from.splits.begin() + static_cast<std::ptrdiff_t>(to), std::int64_t{0}));
}

std::uint64_t block_bytes(const OperationPlan& operation, std::size_t from, std::size_t to) {
  const MemberPlan& sender = operation.members[from];
  const bool all_to_all = sender.collective == Collective::all_to_all;
  return all_to_all ? static_cast<std::uint64_t>(sender.splits[to]) : sender.bytes();
}

Range chunk(const MemberPlan& plan, std::size_t members, std::size_t member) {
  const auto rows = plan.shape.empty() ? 0 : static_cast<std::uint64_t>(plan.shape[0]);
  return chunk_of(plan.bytes(), rows, members, member);
}

}  // namespace

const Bytes& Expected::input(std::size_t member) {
  std::optional<Bytes>& known = inputs_[member];
  if (!known) {
    const MemberPlan& plan = operation_.members[member];
    known.emplace(plan.bytes());
    if (!plan.joined) {
      fill(*known, plan.dtype, plan.op, operation_.rough, operation_.values + member);
    }
  }
  return *known;
}

const Bytes& Expected::reduced() {
  if (!reduced_) {
    std::vector<Bytes> inputs;
    for (std::size_t i = 0; i < operation_.members.size(); ++i) {
      inputs.push_back(input(i));
    }
    const MemberPlan& member = operation_.members.front();
    const bool by_nodes = plan_.is_local(operation_.group) && inputs.size() == plan_.config.size();
    reduced_ = by_nodes ? reduced_by_nodes(inputs)
                        : combine(inputs, member.dtype, member.op, static_cast<double>(inputs.size()));
  }
  return *reduced_;
}

// Each node's ranks first, then the nodes, in the order in which they come in the group. The mean of a type whose sums
// are rounded goes on as the node's own, by the ranks of the largest node.
Bytes Expected::reduced_by_nodes(const std::vector<Bytes>& inputs) const {
  const MemberPlan& member = operation_.members.front();
  const std::vector<std::uint32_t>& ranks = plan_.members(operation_);
  std::vector<std::uint32_t> leaders;
  std::map<std::uint32_t, std::vector<Bytes>> by_node;
  std::size_t largest = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::uint32_t leader = plan_.config.leaders[ranks[i]];
    std::vector<Bytes>& node = by_node[leader];
    if (node.empty()) {
      leaders.push_back(leader);
    }
    node.push_back(inputs[i]);
    largest = std::max(largest, node.size());
  }
  const auto all = static_cast<double>(ranks.size());
  if (leaders.size() == 1) {
    return combine(inputs, member.dtype, member.op, all);
  }
  const bool is_mean = member.op == Operator::mean;
  const bool rounds = is_mean && sums_widen(member.dtype);
  const double here = rounds ? static_cast<double>(largest) : 1;
  std::vector<Bytes> nodes;
  for (const std::uint32_t leader : leaders) {
    nodes.push_back(combine(by_node[leader], member.dtype, is_mean && !rounds ? Operator::sum : member.op, here));
  }
  return combine(nodes, member.dtype, member.op, all / here);
}

Bytes Expected::blocks(std::size_t member) {
  Bytes result;
  for (std::size_t from = 0; from < operation_.members.size(); ++from) {
    const MemberPlan& sender = operation_.members[from];
    const std::size_t begin = sender.collective == Collective::all_to_all ? split_offset(sender, member) : 0;
    const auto at = input(from).begin() + static_cast<std::ptrdiff_t>(begin);
    result.insert(result.end(), at, at + static_cast<std::ptrdiff_t>(block_bytes(operation_, from, member)));
  }
  return result;
}

std::vector<std::uint64_t> blocks_for(const OperationPlan& operation, std::size_t member) {
  std::vector<std::uint64_t> blocks;
  for (std::size_t from = 0; from < operation.members.size(); ++from) {
    blocks.push_back(block_bytes(operation, from, member));
  }
  return blocks;
}

std::size_t output_bytes_of(const OperationPlan& operation, std::size_t member) {
  const MemberPlan& plan = operation.members[member];
  switch (plan.collective) {
    case Collective::reduce_scatter:
      return chunk(plan, operation.members.size(), member).size();
    case Collective::all_gather:
    case Collective::all_to_all: {
      std::size_t total = 0;
      for (std::size_t from = 0; from < operation.members.size(); ++from) {
        const MemberPlan& sender = operation.members[from];
        total += sender.collective == plan.collective ? block_bytes(operation, from, member) : 0;
      }
      return total;
    }
    default:
      return plan.bytes();
  }
}

std::size_t own_offset(const OperationPlan& operation, std::size_t member) {
  const MemberPlan& plan = operation.members[member];
  if (plan.collective == Collective::reduce_scatter) {
    return chunk(plan, operation.members.size(), member).begin;
  }
  std::size_t offset = 0;
  for (std::size_t from = 0; plan.collective == Collective::all_gather && from < member; ++from) {
    offset += operation.members[from].collective == plan.collective ? operation.members[from].bytes() : 0;
  }
  return offset;
}

Bytes Expected::result(std::size_t member) {
  const MemberPlan& plan = operation_.members[member];
  switch (plan.collective) {
    case Collective::all_reduce:
      return reduced();
    case Collective::reduce_scatter: {
      const Range part = chunk(plan, operation_.members.size(), member);
      return {reduced().begin() + static_cast<std::ptrdiff_t>(part.begin),
              reduced().begin() + static_cast<std::ptrdiff_t>(part.end)};
    }
    case Collective::broadcast:
      return input(plan.root);
    case Collective::all_gather:
    case Collective::all_to_all:
      return blocks(member);
    default:
      return {};
  }
}

}  // namespace shoal::sim
