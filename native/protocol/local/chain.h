// How a chunk moves as a chain, for sums that need not be wider while they are added up: the first member puts its
// contribution into the slot, each that follows adds its own to what is there, and when the last has, each takes the
// result out. A chunk needs one part of a slot instead of one for each rank, so there are so many more slots, and ranks
// are busy with different chunks instead of waiting for each other.
//
// Steps per chunk: n + 1. Bytes of M that a rank reads: at most 3 · M; that it writes: 2 · M.
#pragma once

#include <cstdint>

#include "protocol/local/group_memory.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::chain {

// Whether it is the faster way for this one, and right.
bool suits(const Transfer& transfer, const Shape& shape);

// How many chunks may be in slots at once.
std::uint64_t slots(const Shape& shape);

// The member after `own`, in the order in which contributions are added; and the one before. There must be one.
std::uint32_t next(const Transfer& transfer, std::uint32_t own);
std::uint32_t previous(const Transfer& transfer, std::uint32_t own);

void add(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);
void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);

}  // namespace shoal::local::chain
