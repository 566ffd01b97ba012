// How a chunk moves as a chain, if its sums are not accumulated in a wider type. The first member puts its contribution
// into the slot, each next member adds its own, and when the last has, each member copies the result out. A chunk needs
// one part of a slot instead of one for each rank. So there are as many times more slots, and ranks work on different
// chunks instead of waiting for each other.
//
// Steps per chunk: n + 1. Bytes of M that a rank reads: at most 3 · M; that it writes: 2 · M.
#pragma once

#include <cstdint>

#include "protocol/local/group_memory.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::chain {

// Whether a chain is right for this transfer, and the fastest way: the same on every rank.
bool suits(const Transfer& transfer, const Shape& shape);

// How many chunks may be in slots at once.
std::uint64_t slots(const Shape& shape);

// The member after `own` in the order in which contributions are added, and the member before. There must be one.
std::uint32_t next(const Transfer& transfer, std::uint32_t own);
std::uint32_t previous(const Transfer& transfer, std::uint32_t own);

void add(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);
void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);

}  // namespace shoal::local::chain
