#include "drivers/shm/flow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "reduce/reduce.h"

namespace shoal::shm {

namespace {

// How many chunks that need no slot a rank may be ahead of others where the network waits for them: it can send none
// before the last rank has done its share, and its threads want the cores too.
constexpr std::uint64_t most_ahead = 2;

}  // namespace

Flow::Flow(const Memory& memory, std::uint32_t own) : memory_(memory), own_(own) {}

Chunks Flow::admit(Transfer transfer) {
  // Of the blocks of an operation each chunk has a part.
  const std::uint64_t bytes = transfer.blocks ? transfer.blocks->largest : transfer.bytes;
  const Chunks chunks(bytes, chunk_bytes(transfer), transfer.weights);
  const bool chain = adds_in_chain(transfer);
  // Two ways would have different chunks in the same memory.
  const bool changes = transfer.arrays.empty() && std::exchange(chain_, chain) != chain;
  transfers_.push_back({std::move(transfer), admitted_, chunks, chain, changes ? admitted_ : 0});
  admitted_ += chunks.count();
  return chunks;
}

const Flow::Admitted& Flow::admitted(std::uint64_t number) const {
  return *std::find_if(transfers_.begin(), transfers_.end(),
                       [number](const Admitted& admitted) { return number < admitted.end(); });
}

Flow::Chunk Flow::chunk(std::uint64_t number) const {
  const Admitted& next = admitted(number);
  const Range range = next.chunks.at(number - next.first);
  return {&next.transfer, range.begin, range.size()};
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

// The last to come this far tells the others: nothing changes for them before that.
void Flow::publish(std::atomic<std::uint64_t> Desk::*counter, std::uint64_t value) {
  (memory_.desk(own_).*counter).store(value);
  if (least(counter) >= value) {
    ring_others(memory_, own_);
  }
}

// That slots are free matters only to those that had none, or use them in another way from here on. `step`: how many
// chunks were collected at once; `slots`: for how many there was room.
void Flow::publish_collected(std::uint64_t step, std::uint64_t slots) {
  memory_.desk(own_).collected.store(collected_);
  if (least(&Desk::collected) < collected_) {
    return;
  }
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    Desk& desk = memory_.desk(rank);
    const std::uint64_t contributed = desk.contributed.load();
    if (rank != own_ && (contributed + step >= collected_ + slots || contributed == collected_)) {
      ring(desk);
    }
  }
}

bool Flow::can_reduce() const {
  if (reduced_ == contributed_) {
    return false;
  }
  const Admitted& next = admitted(reduced_);
  if (next.direct()) {
    return !next.transfer.up || reduced_ < least(&Desk::reduced) + most_ahead;
  }
  return next.transfer.only_copies() || least(&Desk::contributed) > reduced_;
}

bool Flow::can_collect() const {
  if (collected_ == reduced_) {
    return false;
  }
  const Admitted& next = admitted(collected_);
  if (next.chain) {
    return memory_.desk(next.transfer.order.back()).contributed.load() > collected_;
  }
  return least(&Desk::reduced) >= (next.collects_each(own_) ? collected_ + 1 : next.end());
}

bool Flow::can_contribute() const {
  if (contributed_ == admitted_) {
    return false;
  }
  const Admitted& next = admitted(contributed_);
  if (next.direct()) {
    return true;
  }
  if (next.chain && next.transfer.order.front() != own_) {
    return can_add_to_chain(next);
  }
  return has_slot(next, contributed_);
}

// For this chunk of it.
bool Flow::has_slot(const Admitted& admitted, std::uint64_t number) const {
  const std::uint64_t collected = least(&Desk::collected);
  return collected >= admitted.after && number < collected + slots_for(admitted);
}

bool Flow::ready() const { return can_reduce() || can_collect() || can_contribute(); }

bool Flow::step() {
  // What is ready for the network costs nothing more here, and is wanted there.
  const bool sends = collected_ < reduced_ && admitted(collected_).direct() && can_collect();
  if (!sends && can_reduce()) {
    reduce_one();
  } else if (can_collect()) {
    collect_one();
  } else if (can_contribute()) {
    contribute_one();
  } else {
    return false;
  }
  pass_chains();
  return true;
}

void Flow::contribute_one() {
  if (const Admitted& whole = admitted(contributed_); whole.direct()) {
    contributed_ = whole.end();
    return publish(&Desk::contributed, contributed_);
  }
  const Chunk next = chunk(contributed_);
  if (admitted(contributed_).chain) {
    return add_to_chain(next);
  }
  if (next.transfer->blocks) {
    contribute_blocks(next);
    return publish(&Desk::contributed, ++contributed_);
  }
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
  if (const Admitted& whole = admitted(reduced_); whole.direct()) {
    reduce_direct(next);
    if (++reduced_ == whole.end() || whole.transfer.up) {
      publish(&Desk::reduced, reduced_);
    }
    return;
  }
  if (next.transfer->blocks) {
    reduce_block(next);
    return publish(&Desk::reduced, ++reduced_);
  }
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
    if (takes(transfer)) {
      // While it is in the cache. Nobody else has ever read what was there.
      std::memcpy(transfer.output + next.begin + own.begin, memory_.slot(reduced_, own_) + own.begin,
                  own.end - own.begin);
    }
  }
  publish(&Desk::reduced, ++reduced_);
}

void Flow::collect_one() {
  const Admitted& whole = admitted(collected_);
  const std::uint64_t slots = slots_for(whole);
  if (!whole.collects_each(own_)) {
    const std::uint64_t chunks = whole.chunks.count();
    collected_ += chunks;
    finish_first();
    return publish_collected(chunks, slots);
  }
  const Chunk next = chunk(collected_);
  const Transfer& transfer = *next.transfer;
  if (transfer.blocks) {
    collect_blocks(next);
  } else if (takes(transfer) && whole.chain) {
    collect_from_chain(next);
  } else if (takes(transfer) && !whole.direct()) {
    collect_shares(next);
  }
  if (takes(transfer) && transfer.up && next.bytes > 0) {
    for_network_.push_back({transfer.name, {next.begin, next.begin + next.bytes}});
  }
  ++collected_;
  if (collected_ == transfers_.front().end()) {
    finish_first();
  }
  publish_collected(1, slots);
}

void Flow::collect_shares(const Chunk& chunk) const {
  for (std::uint32_t rank = 0; rank < memory_.shape().ranks; ++rank) {
    if (rank == own_) {
      continue;
    }
    const Share share = share_of(chunk, rank);
    std::memcpy(chunk.transfer->output + chunk.begin + share.begin, memory_.slot(collected_, rank) + share.begin,
                share.end - share.begin);
  }
}

void Flow::finish_first() {
  finished_.push_back(transfers_.front().transfer.name);
  transfers_.pop_front();
}

std::vector<std::uint32_t> Flow::late() const {
  if (!transfers_.empty() && transfers_.front().chain) {
    return late_in_chain(transfers_.front());
  }
  // Of a chunk without slots nobody waits until somebody has collected it, and some collect it sooner than others.
  const bool direct = !transfers_.empty() && transfers_.front().direct();
  const auto done_by = [&](std::uint32_t rank) {
    const Desk& desk = memory_.desk(rank);
    return desk.contributed.load() + desk.reduced.load() + (direct ? 0 : desk.collected.load());
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
