// How a chunk moves straight from arrays to arrays, if the arrays of all ranks lie in the shared memory. Each rank
// reduces its share of the chunk and writes it to all outputs. That needs no slot and no waiting, since all ranks have
// called the operation before it flows.
//
// A sum that goes on to other nodes (`up`) is written only into the leader's output. The leader sends each
// chunk from there as soon as all have reduced it. A share is read from all inputs before it is written, so an output
// may be an input.
//
// Steps per chunk: 1. Bytes of M that a rank reads: M; that it writes: M, or M/n if it goes up.
#pragma once

#include <cstdint>

#include "protocol/local/group_memory.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::straight {

std::uint64_t chunk_bytes(const Transfer& transfer, const Shape& shape);

void reduce(const Chunk& chunk, std::uint32_t own, std::uint32_t ranks, Hands& hands);

}  // namespace shoal::local::straight
