// Operations whose contributions all lie beside the openings. Each rank has everything at once, and needs no other.
#pragma once

#include <cstdint>

#include "protocol/local/operation.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::small {

// What this rank or another contributes.
const std::byte* contribution_of(const Operation& operation, std::uint32_t place, std::uint32_t own);

// The sum of all contributions, in the group's order.
void reduce(const Operation& operation, std::uint32_t own, std::byte* sum, Operator op, double divisor, Hands& hands);

// All other operations. The output is allocated.
void move_blocks(const Operation& operation, const Blocks& blocks, std::uint32_t own, Hands& hands);

}  // namespace shoal::local::small
