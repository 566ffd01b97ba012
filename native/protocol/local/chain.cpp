#include "protocol/local/chain.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace shoal::local::chain {

namespace {

// With fewer chunks for each rank not all are busy most of the time, and shares are faster. Chunks of operations before
// it count: they are in the same pipeline, while shares would have to wait until it is empty.
constexpr std::uint64_t least_chunks_per_rank = 4;

// Each part of a slot is one.
std::byte* slot_of(std::uint64_t number, const GroupMemory& memory) {
  const std::uint64_t part = number % slots(memory.shape());
  return memory.slot(part / memory.ranks(), static_cast<std::uint32_t>(part % memory.ranks()));
}

auto position_of(const Transfer& transfer, std::uint32_t place) {
  return std::find(transfer.order.begin(), transfer.order.end(), place);
}

}  // namespace

// A sum is rounded once, at the end: what widens meanwhile has no room in a slot.
bool suits(const Transfer& transfer, const Shape& shape) {
  const std::uint64_t least = least_chunks_per_rank * shape.ranks * shape.slot;
  return shape.ranks > 1 && !sums_widen(transfer.dtype) && !transfer.blocks && !transfer.straight() &&
         (transfer.bytes >= least || transfer.queued >= least - transfer.bytes);
}

std::uint64_t slots(const Shape& shape) { return std::uint64_t{shape.slots} * shape.ranks; }

std::uint32_t next(const Transfer& transfer, std::uint32_t own) { return *std::next(position_of(transfer, own)); }
std::uint32_t previous(const Transfer& transfer, std::uint32_t own) { return *std::prev(position_of(transfer, own)); }

void add(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  const Transfer& transfer = *chunk.transfer;
  const std::byte* const input = transfer.input + chunk.begin;
  std::byte* const sum = slot_of(chunk.number, memory);
  if (transfer.order.front() == own) {
    return hands.copy(sum, input, chunk.bytes);
  }
  if (chunk.bytes == 0) {
    return;
  }
  const bool last = transfer.order.back() == own;
  const Operator op = transfer.op == Operator::mean && !last ? Operator::sum : transfer.op;
  const std::array<const std::byte*, 2> sources{sum, input};
  hands.sum(sum, sources, chunk.bytes / size_of(transfer.dtype), transfer.dtype, op, transfer.divisor);
  if (last && transfer.fills_output_of(own)) {
    hands.copy(transfer.output + chunk.begin, sum, chunk.bytes);  // while it is in the cache
  }
}

void collect(const Chunk& chunk, const GroupMemory& memory, std::uint32_t own, Hands& hands) {
  if (chunk.transfer->order.back() != own) {
    hands.copy(chunk.transfer->output + chunk.begin, slot_of(chunk.number, memory), chunk.bytes);
  }
}

}  // namespace shoal::local::chain
