// How chunks move if ranks have different bytes for each other. A chunk is a slice of each block, and each slice lies
// in the slot of the rank that it comes from. So all ranks have work in every chunk, whoever the blocks are for.
//
// A reduce-scatter takes the first two steps of a chunk, a copy the first and the last.
#pragma once

#include <cstdint>

#include "protocol/local/group_memory.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::block_chunks {

// Bytes of each block in a chunk.
std::uint64_t slice_bytes(const Transfer& transfer, const Shape& shape);

// Where in this rank's output the chunk's slice of a rank's block goes; empty if it has none.
Range incoming_slice(const Chunk& chunk, std::uint32_t place);

void contribute(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);
void reduce(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);
void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands);

}  // namespace shoal::local::block_chunks
