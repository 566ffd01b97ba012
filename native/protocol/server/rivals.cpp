#include "protocol/server/rivals.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/agreement.h"

namespace shoal::server {

namespace {

std::uint32_t leader_of(std::uint32_t rank, const JobConfig& config) {
  return config.leaders.empty() ? rank : config.leaders[rank];
}

bool is_of_nodes(const Operation& operation) { return operation.group().senders == Senders::nodes; }

}  // namespace

bool can_be_rivals(const Group& one, const Group& other) {
  const bool of_nodes = one.senders == Senders::nodes;
  std::vector<std::uint32_t> leaders = of_nodes ? one.ranks : other.ranks;
  std::vector<std::uint32_t> ranks = of_nodes ? other.ranks : one.ranks;
  std::sort(leaders.begin(), leaders.end());
  std::sort(ranks.begin(), ranks.end());
  return one.senders != other.senders && std::includes(ranks.begin(), ranks.end(), leaders.begin(), leaders.end());
}

// A leader has opened for all ranks of its node.
std::string mismatch_text(const Operation& operation, const Operation* rival, const JobConfig& config) {
  std::unordered_map<std::uint32_t, const wire::Opening*> by_rank;
  std::unordered_map<std::uint32_t, const wire::Opening*> by_leader;
  std::vector<std::uint32_t> ranks;
  for (const Operation* const one : {&operation, rival}) {
    for (std::size_t i = 0; one != nullptr && i < one->size(); ++i) {
      if (one->member(i).opened) {
        (is_of_nodes(*one) ? by_leader : by_rank).emplace(one->rank(i), &one->member(i).opening);
      }
    }
    if (one != nullptr && !is_of_nodes(*one)) {
      ranks = one->group().ranks;
    }
  }
  if (ranks.empty()) {
    for (const std::uint32_t leader : operation.group().ranks) {
      const std::vector<std::uint32_t> node = config.node_of(leader);
      ranks.insert(ranks.end(), node.begin(), node.end());
    }
  }
  std::vector<const wire::Opening*> openings;
  for (const std::uint32_t rank : ranks) {
    const auto own = by_rank.find(rank);
    const auto of_node = by_leader.find(leader_of(rank, config));
    openings.push_back(own != by_rank.end() ? own->second : of_node != by_leader.end() ? of_node->second : nullptr);
  }
  // Of ranks whose leader has not opened it, some may have called it.
  return shoal::mismatch_text(openings, ranks, !by_leader.empty(), config);
}

bool went_to_rival(const Operation& operation, std::size_t index, const Operation& rival, const JobConfig& config) {
  const std::uint32_t rank = operation.rank(index);
  const std::uint32_t there = is_of_nodes(operation) ? rank : leader_of(rank, config);
  const std::optional<std::size_t> member = rival.group().index_of(there);
  return member && rival.member(*member).opened && !rival.member(*member).opening.failed;
}

}  // namespace shoal::server
