#include "protocol/local/shares.h"

#include <algorithm>
#include <vector>

#include "base/limits.h"

namespace shoal::local::shares {

Range share_of(const Chunk& chunk, std::uint32_t place, std::uint32_t ranks) {
  const std::uint64_t units = (chunk.bytes + limits::shard_alignment - 1) / limits::shard_alignment;
  const auto bound = [&](std::uint64_t part) {
    return std::min(units * part / ranks * limits::shard_alignment, chunk.bytes);
  };
  return {bound(place), bound(place + 1)};
}

// Nobody else reads what this rank reduces of its own.
void contribute(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  const std::byte* const input = chunk.transfer->input + chunk.begin;
  std::byte* const slot = memory.slot(chunk.number, own);
  const Range share = share_of(chunk, own, memory.ranks());
  hands.copy(slot, input, share.begin);
  hands.copy(slot + share.end, input + share.end, chunk.bytes - share.end);
}

void reduce(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  const Range share = share_of(chunk, own, memory.ranks());
  if (share.empty()) {
    return;
  }
  const Transfer& transfer = *chunk.transfer;
  std::vector<const std::byte*> sources;
  sources.reserve(transfer.order.size());
  for (std::uint32_t place : transfer.order) {
    const std::byte* part = place == own ? transfer.input + chunk.begin : memory.slot(chunk.number, place);
    sources.push_back(part + share.begin);
  }
  std::byte* const sum = memory.slot(chunk.number, own) + share.begin;
  hands.sum(sum, sources, share.size() / size_of(transfer.dtype), transfer.dtype, transfer.op, transfer.divisor);
  if (transfer.fills_output_of(own)) {
    // While it is in the cache. Nobody else has ever read what was there.
    hands.copy(transfer.output + chunk.begin + share.begin, sum, share.size());
  }
}

void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  for (std::uint32_t place = 0; place < memory.ranks(); ++place) {
    if (place == own) {
      continue;
    }
    const Range share = share_of(chunk, place, memory.ranks());
    hands.copy(chunk.transfer->output + chunk.begin + share.begin, memory.slot(chunk.number, place) + share.begin,
               share.size());
  }
}

}  // namespace shoal::local::shares
