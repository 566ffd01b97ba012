#include "protocol/local/straight.h"

#include <algorithm>
#include <vector>

#include "protocol/local/shares.h"

namespace shoal::local::straight {

namespace {

// Of each array: what was read to be reduced is written back while it is in the core's cache.
constexpr std::uint64_t block_bytes = 32 * 1024;

}  // namespace

std::uint64_t chunk_bytes(const Transfer& transfer, const Shape& shape) {
  return (transfer.up ? shape.share_up : shape.share) * shape.ranks;
}

void reduce(const Chunk& chunk, std::uint32_t own, std::uint32_t ranks, Hands& hands) {
  const Range share = shares::share_of(chunk, own, ranks);
  const Transfer& transfer = *chunk.transfer;
  const auto& [inputs, outputs] = transfer.arrays;
  std::vector<const std::byte*> sources(inputs.size());
  for (std::uint64_t begin = share.begin; begin < share.end; begin += block_bytes) {
    const std::uint64_t bytes = std::min(block_bytes, share.end - begin);
    const std::uint64_t at = chunk.begin + begin;
    std::transform(inputs.begin(), inputs.end(), sources.begin(), [at](const std::byte* input) { return input + at; });
    std::byte* const result = outputs.front() + at;
    hands.sum(result, sources, bytes / size_of(transfer.dtype), transfer.dtype, transfer.op, transfer.divisor);
    for (std::size_t other = 1; other < outputs.size(); ++other) {
      hands.copy(outputs[other] + at, result, bytes);
    }
  }
}

}  // namespace shoal::local::straight
