// What a group of all ranks is to the other nodes of a simulated job, as the engine finds it (engine/local_groups.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/job.h"
#include "protocol/local/internode.h"

namespace shoal::sim {

// None: all ranks are on one node. `leaders`: the first rank of each node, in the order of `ranks`.
std::optional<local::Internode> internode_of(const JobConfig& config, const std::vector<std::uint32_t>& ranks,
                                             std::vector<std::uint32_t>& leaders);

}  // namespace shoal::sim
