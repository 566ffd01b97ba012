// How chunks flow that need no slot: a rank reads its share of them in the inputs of all ranks, and writes the result
// into the outputs.
#include <algorithm>
#include <cstring>

#include "drivers/shm/flow.h"
#include "reduce/reduce.h"

namespace shoal::shm {

namespace {

// What a rank reduces of a chunk. Between two chunks it looks whether the job still goes on.
constexpr std::uint64_t share_bytes = 1024 * 1024;

// The same where the network waits for the chunk.
constexpr std::uint64_t share_bytes_up = 128 * 1024;

// Of each array: what was read to be reduced is written back while it is in the core's cache.
constexpr std::uint64_t block_bytes = 32 * 1024;

}  // namespace

std::uint64_t Flow::chunk_bytes(const Transfer& transfer) const {
  if (transfer.blocks) {
    return slice_bytes(transfer);
  }
  if (transfer.arrays.empty()) {
    return memory_.shape().slot;
  }
  return (transfer.up ? share_bytes_up : share_bytes) * memory_.shape().ranks;
}

void Flow::reduce_direct(const Chunk& chunk) const {
  const Share own = share_of(chunk, own_);
  const Transfer& transfer = *chunk.transfer;
  const auto& [inputs, outputs] = transfer.arrays;
  std::vector<const std::byte*> sources(inputs.size());
  for (std::uint64_t begin = own.begin; begin < own.end; begin += block_bytes) {
    const std::uint64_t bytes = std::min(block_bytes, own.end - begin);
    const std::uint64_t at = chunk.begin + begin;
    std::transform(inputs.begin(), inputs.end(), sources.begin(), [at](const std::byte* input) { return input + at; });
    std::byte* const result = outputs.front() + at;
    reduce(result, sources, bytes / size_of(transfer.dtype), transfer.dtype, transfer.op, transfer.divisor);
    for (std::size_t other = 1; other < outputs.size(); ++other) {
      std::memcpy(outputs[other] + at, result, bytes);
    }
  }
}

}  // namespace shoal::shm
