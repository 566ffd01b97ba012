// A rank's part in an operation, from the calls of all ranks: which bytes go where. All ranks see the same calls, so
// all make the same plan. Throws std::runtime_error for impossible calls.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/local/operation.h"
#include "protocol/local/transfer.h"

namespace shoal::local {

// The plan of an operation in which ranks have different bytes for each other: of everything but an all-reduce.
Blocks blocks_of(const Operation& operation, std::uint32_t own);

// The plan of an all-gather that goes on to other nodes: of its node's blocks, in the output, or on the leader in the
// crossing array.
Blocks crossing_blocks(const Operation& operation, std::uint32_t own, bool is_first);

// The bytes that each member has for this rank, in the group's order: what a gather brings.
std::vector<std::uint64_t> incoming_sizes(const Operation& operation, const Blocks& blocks);

// The plan of an all-reduce.
Transfer reduction_of(const Operation& operation, std::uint32_t ranks);

// Whether the arrays of all ranks lie in their regions.
bool all_have_places(const Operation& operation);

}  // namespace shoal::local
