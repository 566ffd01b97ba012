#include "drivers/sim/internode_of.h"

#include <algorithm>
#include <map>

#include "protocol/sharding.h"

namespace shoal::sim {

std::optional<local::Internode> internode_of(const JobConfig& config, const std::vector<std::uint32_t>& ranks,
                                             std::vector<std::uint32_t>& leaders) {
  std::map<std::uint32_t, std::uint32_t> sizes;
  for (const std::uint32_t rank : ranks) {
    const std::uint32_t leader = config.leaders[rank];
    if (sizes[leader]++ == 0) {
      leaders.push_back(leader);
    }
  }
  if (leaders.size() < 2) {
    return std::nullopt;
  }
  local::Internode internode;
  internode.ranks = config.size();
  for (const auto& [leader, size] : sizes) {
    internode.largest = std::max(internode.largest, size);
  }
  internode.weights = config.weights;
  internode.shared_from = shared_from(config);
  return internode;
}

}  // namespace shoal::sim
