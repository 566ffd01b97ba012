// How a chunk moves straight from arrays to arrays, where those of all ranks lie in the shared memory: each rank
// reduces its share of the chunk, and writes it to all. It needs no slot and waits for nobody, since all ranks have
// called the operation before it flows.
//
// What goes on to other nodes (`up`) is written into the first rank's output alone, which sends each chunk from there
// as soon as all have reduced it. A share is read in all inputs before it is written, so that output may be an input.
//
// Steps per chunk: 1. Bytes of M that a rank reads: M; that it writes: M, or M/n where it goes up.
#pragma once

#include <cstdint>

#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local::straight {

std::uint64_t chunk_bytes(const Transfer& transfer, std::uint32_t ranks);

void reduce(const Chunk& chunk, std::uint32_t own, std::uint32_t ranks, Hands& hands);

}  // namespace shoal::local::straight
