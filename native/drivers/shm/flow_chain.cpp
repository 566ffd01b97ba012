// How chunks flow that are added up in one slot, by one member of the group after the other.
//
// Of its counters a rank raises `contributed` when it has added its own. There is nothing to be reduced afterwards, so
// `reduced` follows at once, as soon as what came before in another way is reduced.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <vector>

#include "drivers/shm/flow.h"
#include "reduce/reduce.h"

namespace shoal::shm {

namespace {

// With fewer chunks for each rank not all are busy most of the time, and shares are faster.
constexpr std::uint64_t least_chunks_per_rank = 4;

}  // namespace

// A sum is rounded once, at the end: what widens meanwhile has no room in a slot.
bool Flow::adds_in_chain(const Transfer& transfer) const {
  return !sums_widen(transfer.dtype) && !transfer.blocks && transfer.arrays.empty() &&
         transfer.bytes >= least_chunks_per_rank * memory_.shape().ranks * memory_.shape().slot;
}

// Each part of a slot is one.
std::byte* Flow::chain_slot(std::uint64_t number) const {
  const std::uint32_t ranks = memory_.shape().ranks;
  const std::uint64_t part = number % (std::uint64_t{memory_.shape().slots} * ranks);
  return memory_.slot(part / ranks, static_cast<std::uint32_t>(part % ranks));
}

std::uint64_t Flow::slots_for(const Admitted& admitted) const {
  return std::uint64_t{memory_.shape().slots} * (admitted.chain ? memory_.shape().ranks : 1);
}

// Of a member that is not the first.
bool Flow::can_add_to_chain(const Admitted& next) const {
  const std::vector<std::uint32_t>& order = next.transfer.order;
  const std::uint32_t before = *std::prev(std::find(order.begin(), order.end(), own_));
  return memory_.desk(before).contributed.load() > contributed_;
}

void Flow::add_to_chain(const Chunk& chunk) {
  const Transfer& transfer = *chunk.transfer;
  const std::byte* const input = transfer.input + chunk.begin;
  std::byte* const sum = chain_slot(contributed_);
  const bool last = transfer.order.back() == own_;
  if (transfer.order.front() == own_) {
    std::memcpy(sum, input, chunk.bytes);
  } else if (chunk.bytes > 0) {
    const Operator op = transfer.op == Operator::mean && !last ? Operator::sum : transfer.op;
    const std::array<const std::byte*, 2> sources{sum, input};
    reduce(sum, sources, chunk.bytes / size_of(transfer.dtype), transfer.dtype, op, transfer.divisor);
    if (last && takes(transfer)) {
      std::memcpy(transfer.output + chunk.begin, sum, chunk.bytes);  // while it is in the cache
    }
  }
  memory_.desk(own_).contributed.store(++contributed_);
  if (!last) {
    return ring(memory_.desk(*std::next(std::find(transfer.order.begin(), transfer.order.end(), own_))));
  }
  ring_others(memory_, own_);
}

void Flow::pass_chains() {
  const std::uint64_t before = reduced_;
  while (reduced_ < contributed_ && admitted(reduced_).chain) {
    ++reduced_;
  }
  if (reduced_ != before) {
    memory_.desk(own_).reduced.store(reduced_);
  }
}

void Flow::collect_from_chain(const Chunk& chunk) const {
  const Transfer& transfer = *chunk.transfer;
  if (transfer.order.back() != own_) {
    std::memcpy(transfer.output + chunk.begin, chain_slot(collected_), chunk.bytes);
  }
}

// The first of the members that have added to the fewest chunks: those after it wait for it. If that is the first of
// all, it may wait for slots, and so for those that have collected the fewest.
std::vector<std::uint32_t> Flow::late_in_chain(const Admitted& whole) const {
  const std::vector<std::uint32_t>& order = whole.transfer.order;
  const auto contributed_by = [&](std::uint32_t rank) { return memory_.desk(rank).contributed.load(); };
  const auto collected_by = [&](std::uint32_t rank) { return memory_.desk(rank).collected.load(); };
  const std::uint32_t slowest = *std::min_element(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return contributed_by(a) < contributed_by(b);
  });
  const std::uint64_t contributed = contributed_by(slowest);
  if (contributed < whole.end() && (slowest != order.front() || has_slot(whole, contributed))) {
    return {slowest};
  }
  const std::uint64_t collected = least(&Desk::collected);
  std::vector<std::uint32_t> ranks;
  std::copy_if(order.begin(), order.end(), std::back_inserter(ranks),
               [&](std::uint32_t rank) { return collected_by(rank) == collected; });
  return ranks;
}

}  // namespace shoal::shm
