#include "protocol/local/block_chunks.h"

#include <algorithm>
#include <vector>

#include "base/limits.h"

namespace shoal::local::block_chunks {

namespace {

Range slice_of(Range block, const Chunk& chunk) {
  return {std::min(block.begin + chunk.begin, block.end), std::min(block.begin + chunk.begin + chunk.bytes, block.end)};
}

void move(std::byte* to, const std::byte* from, std::uint64_t bytes, Hands& hands) {
  if (bytes > 0 && to != from) {
    hands.copy(to, from, bytes);
  }
}

// Where in a rank's slot that is what it has for `rank`.
std::uint64_t slot_offset(const Transfer& transfer, std::uint32_t place, const Shape& shape) {
  return transfer.blocks->same ? 0 : place * slice_bytes(transfer, shape);
}

}  // namespace

std::uint64_t slice_bytes(const Transfer& transfer, const Shape& shape) {
  const std::uint64_t share = shape.slot / shape.ranks / limits::shard_alignment * limits::shard_alignment;
  return transfer.blocks->same ? shape.slot : share;
}

Range incoming_slice(const Chunk& chunk, std::uint32_t place) {
  return slice_of(chunk.transfer->blocks->incoming[place], chunk);
}

void contribute(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  const Transfer& transfer = *chunk.transfer;
  const Blocks& blocks = *transfer.blocks;
  std::byte* const slot = memory.slot(chunk.number, own);
  bool placed = false;
  for (std::uint32_t place = 0; place < memory.ranks(); ++place) {
    const Range from = slice_of(blocks.outgoing[place], chunk);
    if (place != own) {
      if (!placed || !blocks.same) {
        move(slot + slot_offset(transfer, place, memory.shape()), transfer.input + from.begin, from.size(), hands);
      }
      placed = true;
    } else if (!transfer.adds()) {
      const Range to = slice_of(blocks.incoming[place], chunk);
      move(transfer.output + to.begin, transfer.input + from.begin, from.size(), hands);
    }
  }
}

void reduce(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  const Transfer& transfer = *chunk.transfer;
  const Range block = transfer.blocks->outgoing[own];
  const Range slice = slice_of(block, chunk);
  if (!transfer.adds() || slice.empty()) {
    return;
  }
  const std::uint64_t offset = slot_offset(transfer, own, memory.shape());
  std::vector<const std::byte*> sources;
  sources.reserve(transfer.order.size());
  for (std::uint32_t place : transfer.order) {
    sources.push_back(place == own ? transfer.input + slice.begin : memory.slot(chunk.number, place) + offset);
  }
  // The output may be that part of the input.
  std::byte* const sum = memory.slot(chunk.number, own) + offset;
  hands.sum(sum, sources, slice.size() / size_of(transfer.dtype), transfer.dtype, transfer.op, transfer.divisor);
  move(transfer.output + (slice.begin - block.begin), sum, slice.size(), hands);
}

void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  const Transfer& transfer = *chunk.transfer;
  for (std::uint32_t place = 0; place < memory.ranks() && !transfer.adds(); ++place) {
    if (place != own) {
      const Range to = slice_of(transfer.blocks->incoming[place], chunk);
      move(transfer.output + to.begin, memory.slot(chunk.number, place) + slot_offset(transfer, own, memory.shape()),
           to.size(), hands);
    }
  }
}

}  // namespace shoal::local::block_chunks
