#include "drivers/shm/flow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "reduce/reduce.h"

namespace shoal::shm {

Flow::Flow(const Memory& memory, std::uint32_t own) : memory_(memory), own_(own) {}

void Flow::admit(Transfer transfer) {
  const Chunks chunks(transfer.bytes, memory_.shape().slot, transfer.parts);
  transfers_.push_back({std::move(transfer), admitted_, chunks});
  admitted_ += chunks.count();
}

Flow::Chunk Flow::chunk(std::uint64_t number) const {
  const auto next = std::find_if(transfers_.begin(), transfers_.end(), [number](const Admitted& admitted) {
    return number < admitted.first + admitted.chunks.count();
  });
  const Range range = next->chunks.at(number - next->first);
  return {&next->transfer, range.begin, range.size()};
}

Flow::Share Flow::share_of(const Chunk& chunk, std::uint32_t rank) const {
  const std::uint64_t units = (chunk.bytes + limits::shard_alignment - 1) / limits::shard_alignment;
  const auto bound = [&](std::uint64_t part) {
    return std::min(units * part / memory_.shape().ranks * limits::shard_alignment, chunk.bytes);
  };
  return {bound(rank), bound(rank + 1)};
}

std::uint64_t Flow::least(std::atomic<std::uint64_t> Desk::*counter) const {
  std::uint64_t lowest = (memory_.desk(own_).*counter).load();
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    lowest = std::min(lowest, (memory_.desk(rank).*counter).load());
  }
  return lowest;
}

// The last to come this far tells the others: nothing changes for them before that. That a slot is free matters only to
// those that have none.
void Flow::publish(std::atomic<std::uint64_t> Desk::*counter, std::uint64_t value) {
  (memory_.desk(own_).*counter).store(value);
  if (least(counter) < value) {
    return;
  }
  const bool frees = counter == &Desk::collected;
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    Desk& desk = memory_.desk(rank);
    if (rank != own_ && (!frees || desk.contributed.load() + 1 >= value + memory_.shape().slots)) {
      ring(desk);
    }
  }
}

bool Flow::can_reduce() const { return reduced_ < contributed_ && least(&Desk::contributed) > reduced_; }
bool Flow::can_collect() const { return collected_ < reduced_ && least(&Desk::reduced) > collected_; }
bool Flow::can_contribute() const {
  return contributed_ < admitted_ && contributed_ < least(&Desk::collected) + memory_.shape().slots;
}

bool Flow::ready() const { return can_reduce() || can_collect() || can_contribute(); }

bool Flow::step() {
  if (can_reduce()) {
    reduce_one();
  } else if (can_collect()) {
    collect_one();
  } else if (can_contribute()) {
    contribute_one();
  } else {
    return false;
  }
  return true;
}

void Flow::contribute_one() {
  const Chunk next = chunk(contributed_);
  const std::byte* const input = next.transfer->input + next.begin;
  std::byte* const slot = memory_.slot(contributed_, own_);
  // Nobody else reads what this rank reduces of its own.
  const Share own = share_of(next, own_);
  std::memcpy(slot, input, own.begin);
  std::memcpy(slot + own.end, input + own.end, next.bytes - own.end);
  publish(&Desk::contributed, ++contributed_);
}

void Flow::reduce_one() {
  const Chunk next = chunk(reduced_);
  const Share own = share_of(next, own_);
  if (own.begin < own.end) {
    const Transfer& transfer = *next.transfer;
    std::vector<const std::byte*> sources;
    sources.reserve(transfer.order.size());
    for (std::uint32_t rank : transfer.order) {
      const std::byte* part = rank == own_ ? transfer.input + next.begin : memory_.slot(reduced_, rank);
      sources.push_back(part + own.begin);
    }
    reduce(memory_.slot(reduced_, own_) + own.begin, sources, (own.end - own.begin) / size_of(transfer.dtype),
           transfer.dtype, transfer.op, transfer.divisor);
  }
  publish(&Desk::reduced, ++reduced_);
}

void Flow::collect_one() {
  const Chunk next = chunk(collected_);
  const Admitted& admitted = transfers_.front();
  const bool takes = own_ == 0 || !next.transfer->up;
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks && takes; ++rank) {
    const Share share = share_of(next, rank);
    std::memcpy(next.transfer->output + next.begin + share.begin, memory_.slot(collected_, rank) + share.begin,
                share.end - share.begin);
  }
  if (takes && next.transfer->up && next.bytes > 0) {
    for_network_.push_back({next.transfer->name, {next.begin, next.begin + next.bytes}});
  }
  if (collected_ + 1 == admitted.first + admitted.chunks.count()) {
    finished_.push_back(next.transfer->name);
    transfers_.pop_front();
  }
  publish(&Desk::collected, ++collected_);
}

std::vector<std::uint32_t> Flow::late() const {
  const auto done_by = [this](std::uint32_t rank) {
    const Desk& desk = memory_.desk(rank);
    return desk.contributed.load() + desk.reduced.load() + desk.collected.load();
  };
  std::vector<std::uint32_t> ranks;
  std::uint64_t lowest = done_by(own_);
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    lowest = std::min(lowest, done_by(rank));
  }
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    if (done_by(rank) == lowest) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::optional<Flow::Collected> Flow::take_collected() {
  if (for_network_.empty()) {
    return std::nullopt;
  }
  const Collected next = for_network_.front();
  for_network_.pop_front();
  return next;
}

std::optional<std::uint64_t> Flow::take_finished() {
  if (finished_.empty()) {
    return std::nullopt;
  }
  const std::uint64_t name = finished_.front();
  finished_.pop_front();
  return name;
}

}  // namespace shoal::shm
