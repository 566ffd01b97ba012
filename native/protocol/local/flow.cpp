#include "protocol/local/flow.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "base/invariant.h"
#include "protocol/local/block_chunks.h"
#include "protocol/local/chain.h"
#include "protocol/local/shares.h"
#include "protocol/local/straight.h"

namespace shoal::local {

namespace {

// How many chunks that need no slot a rank may be ahead of others where the network waits for them: it can send none
// before the last rank has done its share, and its threads want the cores too.
constexpr std::uint64_t most_ahead = 2;

std::uint64_t summed_in_slots(const Transfer& transfer) {
  return transfer.straight() || transfer.blocks ? 0 : transfer.bytes;
}

}  // namespace

// --- What is to be done ---

Chunks Flow::admit(Transfer transfer) {
  // Of the blocks of an operation each chunk has a part.
  const std::uint64_t bytes = transfer.blocks ? transfer.blocks->largest : transfer.bytes;
  const Chunks chunks(bytes, chunk_bytes(transfer), transfer.weights);
  const bool chain = chain::suits(transfer, memory_.shape());
  // Two ways would have different chunks in the same memory.
  const bool changes = !transfer.straight() && std::exchange(chain_, chain) != chain;
  queued_ += summed_in_slots(transfer);
  transfers_.push_back({std::move(transfer), admitted_, chunks, chain, changes ? admitted_ : 0});
  admitted_ += chunks.count();
  return chunks;
}

std::uint64_t Flow::chunk_bytes(const Transfer& transfer) const {
  if (transfer.blocks) {
    return block_chunks::slice_bytes(transfer, memory_.shape());
  }
  return transfer.straight() ? straight::chunk_bytes(transfer, memory_.shape()) : memory_.shape().slot;
}

const Flow::Admitted& Flow::admitted(std::uint64_t number) const {
  return *std::find_if(transfers_.begin(), transfers_.end(),
                       [number](const Admitted& admitted) { return number < admitted.end(); });
}

Chunk Flow::chunk(std::uint64_t number) const {
  const Admitted& next = admitted(number);
  const Range range = next.chunks.at(number - next.first);
  return {&next.transfer, number, range.begin, range.size()};
}

std::uint64_t Flow::slots_for(const Admitted& admitted) const {
  return admitted.chain ? chain::slots(memory_.shape()) : memory_.shape().slots;
}

bool Flow::has_slot(const Admitted& admitted, std::uint64_t number) const {
  const std::uint64_t collected = least(&RankWords::collected);
  return number < collected + slots_for(admitted) && collected >= admitted.after;
}

// --- One step ---

// What was added to a chain is not reduced afterwards: as soon as what came before in another way is reduced, it counts
// as that.
bool Flow::passes_chain() const { return !stopped_ && reduced_ < contributed_ && admitted(reduced_).chain; }

bool Flow::can_reduce() const {
  if (reduced_ == contributed_) {
    return false;
  }
  const Admitted& next = admitted(reduced_);
  if (next.transfer.straight()) {
    return !next.transfer.up || reduced_ < least(&RankWords::reduced) + most_ahead;
  }
  return next.transfer.only_copies() || least(&RankWords::contributed) > reduced_;
}

bool Flow::can_collect() const {
  if (collected_ == reduced_) {
    return false;
  }
  const Admitted& next = admitted(collected_);
  if (next.chain) {
    return memory_.words(next.transfer.order.back()).contributed.load() > collected_;
  }
  return least(&RankWords::reduced) >= (next.collects_each(own_) ? collected_ + 1 : next.end());
}

bool Flow::can_contribute() const {
  if (contributed_ == admitted_) {
    return false;
  }
  const Admitted& next = admitted(contributed_);
  if (next.transfer.straight()) {
    return true;
  }
  if (next.chain && next.transfer.order.front() != own_) {
    return memory_.words(chain::previous(next.transfer, own_)).contributed.load() > contributed_;
  }
  return has_slot(next, contributed_);
}

bool Flow::ready() const { return !stopped_ && (passes_chain() || can_reduce() || can_collect() || can_contribute()); }

// What is ready for the network costs nothing more here, and is wanted there: it goes before more is reduced.
bool Flow::step() {
  if (stopped_) {
    return false;
  }
  if (passes_chain()) {
    bool ends = false;
    while (passes_chain()) {
      ++reduced_;
      ends = reduced_ == admitted(reduced_ - 1).end();
    }
    // Nobody waits for this count in the chain; in what comes after it others may.
    if (ends) {
      publish(&RankWords::reduced, reduced_);
    } else {
      memory_.words(own_).reduced.store(reduced_);
    }
    return true;
  }
  const bool sends = collected_ < reduced_ && admitted(collected_).transfer.straight() && can_collect();
  if (!sends && can_reduce()) {
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
  const Admitted& whole = admitted(contributed_);
  if (whole.transfer.straight()) {
    contributed_ = whole.end();
    return publish(&RankWords::contributed, contributed_);
  }
  const Chunk next = chunk(contributed_);
  ++contributed_;
  if (whole.chain) {
    chain::add(next, memory_, own_, hands_);
    return publish_contributed_to_chain(whole.transfer);
  }
  if (whole.transfer.blocks) {
    block_chunks::contribute(next, memory_, own_, hands_);
  } else {
    shares::contribute(next, memory_, own_, hands_);
  }
  publish(&RankWords::contributed, contributed_);
}

void Flow::reduce_one() {
  const Admitted& whole = admitted(reduced_);
  const Chunk next = chunk(reduced_);
  ++reduced_;
  if (whole.transfer.straight()) {
    straight::reduce(next, own_, memory_.ranks(), hands_);
    if (any_withdrawn()) {
      stopped_ = true;  // who knows what that was
      return;
    }
    // Where nothing goes up, nobody waits for a part of it.
    if (reduced_ < whole.end() && !whole.transfer.up) {
      return;
    }
  } else if (whole.transfer.blocks) {
    block_chunks::reduce(next, memory_, own_, hands_);
  } else {
    shares::reduce(next, memory_, own_, hands_);
  }
  publish(&RankWords::reduced, reduced_);
}

// Asked once the arrays have been read: what their owners' programs write from now on was not among it.
bool Flow::any_withdrawn() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    if (place != own_ && memory_.words(place).withdrawn.load() != 0) {
      return true;
    }
  }
  return false;
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
  const Transfer& transfer = whole.transfer;
  const bool takes = transfer.fills_output_of(own_);
  if (transfer.blocks) {
    block_chunks::collect(next, memory_, own_, hands_);
    for (std::uint32_t place = 0; place < memory_.ranks() && takes && transfer.up; ++place) {
      if (const Range slice = block_chunks::incoming_slice(next, place); !slice.empty()) {
        for_network_.push_back({transfer.handle, slice});
      }
    }
  } else if (takes && whole.chain) {
    chain::collect(next, memory_, own_, hands_);
  } else if (takes && !transfer.straight()) {
    shares::collect(next, memory_, own_, hands_);
  }
  if (takes && transfer.up && !transfer.blocks && next.bytes > 0) {
    for_network_.push_back({transfer.handle, {next.begin, next.begin + next.bytes}});
  }
  ++collected_;
  if (collected_ == transfers_.front().end()) {
    finish_first();
  }
  publish_collected(1, slots);
}

void Flow::finish_first() {
  finished_.push_back(transfers_.front().transfer.handle);
  queued_ -= summed_in_slots(transfers_.front().transfer);
  transfers_.pop_front();
}

// --- Counters ---

std::uint64_t Flow::least(Counter RankWords::*counter) const {
  std::uint64_t lowest = (memory_.words(own_).*counter).load();
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    lowest = std::min(lowest, (memory_.words(place).*counter).load());
  }
  return lowest;
}

void Flow::ring_others() {
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    if (place != own_) {
      bells_.ring(place, false);
    }
  }
}

// The last to come this far tells the others: nothing changes for them before that.
void Flow::publish(Counter RankWords::*counter, std::uint64_t value) {
  (memory_.words(own_).*counter).store(value);
  if (least(counter) >= value) {
    ring_others();
  }
}

void Flow::publish_contributed_to_chain(const Transfer& transfer) {
  memory_.words(own_).contributed.store(contributed_);
  if (transfer.order.back() != own_) {
    return bells_.ring(chain::next(transfer, own_), false);
  }
  ring_others();
}

// That slots are free matters only to ranks that had none, or use them in another way from here on. `step`: how many
// chunks were collected at once; `slots`: for how many there was room.
void Flow::publish_collected(std::uint64_t step, std::uint64_t slots) {
  memory_.words(own_).collected.store(collected_);
  if (least(&RankWords::collected) < collected_) {
    return;
  }
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    const std::uint64_t contributed = memory_.words(place).contributed.load();
    if (place != own_ && (contributed + step >= collected_ + slots || contributed == collected_)) {
      bells_.ring(place, false);
    }
  }
}

// --- What is done ---

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
  const std::uint64_t handle = finished_.front();
  finished_.pop_front();
  return handle;
}

// --- Who is late ---

std::vector<std::uint32_t> Flow::late() const {
  if (!transfers_.empty() && transfers_.front().chain) {
    return late_in_chain(transfers_.front());
  }
  // Of a chunk without slots nobody waits until somebody has collected it, and some collect it sooner than others.
  const bool straight = !transfers_.empty() && transfers_.front().transfer.straight();
  const auto done_by = [&](std::uint32_t place) {
    const RankWords& words = memory_.words(place);
    return words.contributed.load() + words.reduced.load() + (straight ? 0 : words.collected.load());
  };
  std::vector<std::uint32_t> places;
  std::uint64_t lowest = done_by(own_);
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    lowest = std::min(lowest, done_by(place));
  }
  for (std::uint32_t place = 0; place < memory_.ranks(); ++place) {
    if (done_by(place) == lowest) {
      places.push_back(place);
    }
  }
  return places;
}

// The first of the members that have added to the fewest chunks: the members after it wait for it. If that is the first
// member of the chain, it may itself wait for slots, and so for the members that have collected the fewest chunks.
std::vector<std::uint32_t> Flow::late_in_chain(const Admitted& whole) const {
  const std::vector<std::uint32_t>& order = whole.transfer.order;
  const auto contributed_by = [&](std::uint32_t place) { return memory_.words(place).contributed.load(); };
  const std::uint32_t slowest = *std::min_element(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return contributed_by(a) < contributed_by(b);
  });
  const std::uint64_t contributed = contributed_by(slowest);
  if (contributed < whole.end() && (slowest != order.front() || has_slot(whole, contributed))) {
    return {slowest};
  }
  const std::uint64_t collected = least(&RankWords::collected);
  std::vector<std::uint32_t> places;
  std::copy_if(order.begin(), order.end(), std::back_inserter(places),
               [&](std::uint32_t place) { return memory_.words(place).collected.load() == collected; });
  return places;
}

void Flow::check_invariants() const {
  SHOAL_INVARIANT(collected_ <= reduced_ && reduced_ <= contributed_ && contributed_ <= admitted_);
  SHOAL_INVARIANT(memory_.words(own_).contributed.load() == contributed_);
  SHOAL_INVARIANT(memory_.words(own_).collected.load() == collected_);
  SHOAL_INVARIANT(memory_.words(own_).reduced.load() <= reduced_);  // behind in the midst of what goes straight
  SHOAL_INVARIANT(transfers_.empty() ? collected_ == admitted_ : transfers_.back().end() == admitted_);
  SHOAL_INVARIANT(!transfers_.empty() || queued_ == 0);
  SHOAL_INVARIANT(transfers_.empty() || (transfers_.front().first <= collected_ && collected_ < admitted_));
  if (contributed_ > collected_ && !admitted(contributed_ - 1).transfer.straight()) {
    SHOAL_INVARIANT(contributed_ <= least(&RankWords::collected) + slots_for(admitted(contributed_ - 1)));
  }
}

}  // namespace shoal::local
