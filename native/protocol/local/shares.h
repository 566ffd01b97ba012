// How a chunk moves by shares. Every rank copies its contribution into its part of the slot. When all have, each
// reduces its share of the chunk, in the order of the group's members. When all have, each copies the whole result out.
//
// Steps per chunk: 3. Bytes of M that a rank reads: (3 - 1/n) · M; that it writes: 2 · M.
#pragma once

#include <cstdint>

#include "base/range.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::shares {

// The share of the chunk that this rank reduces.
Range share_of(const Chunk& chunk, std::uint32_t place, std::uint32_t ranks);

void contribute(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);
void reduce(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);
void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);

}  // namespace shoal::local::shares
