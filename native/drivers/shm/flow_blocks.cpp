// How chunks flow in which ranks have different bytes for each other: a chunk is a slice of each block, and each slice
// has its place in the slot of the rank that it comes from. So all ranks have something to do in every chunk, whoever
// the blocks are for.
//
// Sums that are scattered take the first two steps of a chunk, copies the first and the last.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/limits.h"
#include "drivers/shm/flow.h"
#include "reduce/reduce.h"

namespace shoal::shm {

namespace {

Range slice_of(Range block, std::uint64_t begin, std::uint64_t bytes) {
  return {std::min(block.begin + begin, block.end), std::min(block.begin + begin + bytes, block.end)};
}

void move_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

// Bytes of each block in a chunk.
std::uint64_t Flow::slice_bytes(const Transfer& transfer) const {
  const std::uint64_t slot = memory_.shape().slot;
  const std::uint64_t share = slot / memory_.shape().ranks / limits::shard_alignment * limits::shard_alignment;
  return transfer.blocks->same ? slot : share;
}

// Where in a rank's slot that is what it has for `rank`.
std::uint64_t Flow::slice_place(const Transfer& transfer, std::uint32_t rank) const {
  return transfer.blocks->same ? 0 : rank * slice_bytes(transfer);
}

void Flow::contribute_blocks(const Chunk& chunk) {
  const Transfer& transfer = *chunk.transfer;
  const Blocks& blocks = *transfer.blocks;
  std::byte* const slot = memory_.slot(contributed_, own_);
  bool placed = false;
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    const Range from = slice_of(blocks.outgoing[rank], chunk.begin, chunk.bytes);
    if (rank != own_) {
      if (!placed || !blocks.same) {
        move_bytes(slot + slice_place(transfer, rank), transfer.input + from.begin, from.size());
      }
      placed = true;
    } else if (!transfer.adds()) {
      const Range to = slice_of(blocks.incoming[rank], chunk.begin, chunk.bytes);
      move_bytes(transfer.output + to.begin, transfer.input + from.begin, from.size());
    }
  }
}

void Flow::reduce_block(const Chunk& chunk) {
  const Transfer& transfer = *chunk.transfer;
  const Range block = transfer.blocks->outgoing[own_];
  const Range own = slice_of(block, chunk.begin, chunk.bytes);
  if (!transfer.adds() || own.empty()) {
    return;
  }
  const std::uint64_t place = slice_place(transfer, own_);
  std::vector<const std::byte*> sources;
  sources.reserve(transfer.order.size());
  for (std::uint32_t rank : transfer.order) {
    sources.push_back(rank == own_ ? transfer.input + own.begin : memory_.slot(reduced_, rank) + place);
  }
  // The output may be that part of the input.
  std::byte* const sum = memory_.slot(reduced_, own_) + place;
  reduce(sum, sources, own.size() / size_of(transfer.dtype), transfer.dtype, transfer.op, transfer.divisor);
  move_bytes(transfer.output + (own.begin - block.begin), sum, own.size());
}

void Flow::collect_blocks(const Chunk& chunk) const {
  const Transfer& transfer = *chunk.transfer;
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks && !transfer.adds(); ++rank) {
    if (rank != own_) {
      const Range to = slice_of(transfer.blocks->incoming[rank], chunk.begin, chunk.bytes);
      move_bytes(transfer.output + to.begin, memory_.slot(collected_, rank) + slice_place(transfer, own_), to.size());
    }
  }
}

}  // namespace shoal::shm
