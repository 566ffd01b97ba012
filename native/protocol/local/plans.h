// What a rank's part in an operation is, from what all ranks have called: which bytes go where. All ranks see the same
// calls, so all come to the same plan. Throws std::runtime_error for calls that cannot be.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/local/operation.h"
#include "protocol/local/transfer.h"

namespace shoal::local {

// Of an operation in which ranks have different bytes for each other: everything but an all-reduce.
Blocks blocks_of(const Operation& operation, std::uint32_t own);

// The bytes that each member has for this rank, in the group's order: what a gather brings.
std::vector<std::uint64_t> incoming_sizes(const Operation& operation, const Blocks& blocks);

// An all-reduce. `internode`: it goes on to the other nodes.
Transfer reduction_of(const Operation& operation, std::uint32_t ranks);

// Where the arrays of all ranks lie in their regions, if all do. Whose outputs the sum goes to: all, or the first
// rank's where it goes on to other nodes.
bool all_have_places(const Operation& operation);

}  // namespace shoal::local
