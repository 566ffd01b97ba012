// The order in which chunks of large operations move, and what a rank may do with a chunk. Counters decide, and nothing
// else.
//
// Operations have the same order on every rank, so three counters of each rank suffice:
//
//   collected ≤ reduced ≤ contributed ≤ admitted,   contributed ≤ (the least of all ranks' collected) + slots
//
// A chunk moves in one of four ways: by shares (shares.h), as a chain (chain.h), straight (straight.h) or in blocks
// (block_chunks.h). Before slots are used in another way, all of them become free. A straight chunk needs no slot: it
// counts as contributed at once, and its operation is done when all ranks have reduced their shares of all chunks.
// If a rank has withdrawn its arrays by the time a share of them is reduced, the share does not count and nothing flows
// any more: that rank has failed everything, and so will the others.
//
// Each step does one thing with one chunk (or with all that need no work) and then raises one counter of this rank. So
// a rank may stop or die between any two steps, and the others find every counter true.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/range.h"
#include "protocol/local/chunks.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/transfer.h"
#include "protocol/local/world.h"

namespace shoal::local {

class Flow {
 public:
  Flow(const GroupMemory& memory, std::uint32_t own, Bells& bells, Hands& hands)
      : memory_(memory), own_(own), bells_(bells), hands_(hands) {}

  // The next operation, the same on every rank. Returns the chunks into which it is cut.
  Chunks admit(Transfer transfer);
  // One step of one chunk, if one can be done. Returns whether one was.
  bool step();
  // Whether step() would do something.
  bool ready() const;
  // Whether step() would only count on in a chain.
  bool passes_chain() const;
  // On the leader: the next bytes of its output that go on to the network.
  struct Collected {
    std::uint64_t handle;
    Range range;
  };
  std::optional<Collected> take_collected();
  // The handle of the next operation that is done here: no rank uses its arrays any more.
  std::optional<std::uint64_t> take_finished();
  // The ranks that others wait for.
  std::vector<std::uint32_t> late() const;
  // Bytes of the sums that move through slots and are not done here.
  std::uint64_t queued() const { return queued_; }

  void check_invariants() const;

 private:
  struct Admitted {
    Transfer transfer;
    std::uint64_t first = 0;  // the number of its first chunk
    Chunks chunks;
    bool chain = false;
    // All ranks must have collected so many chunks before one of these may be in a slot.
    std::uint64_t after = 0;

    std::uint64_t end() const { return first + chunks.count(); }
    // Whether the rank does something with each chunk when it is reduced, instead of once when all are.
    bool collects_each(std::uint32_t place) const { return !transfer.straight() || (transfer.up && place == 0); }
  };

  const Admitted& admitted(std::uint64_t number) const;  // the operation that has this chunk
  Chunk chunk(std::uint64_t number) const;
  std::uint64_t chunk_bytes(const Transfer& transfer) const;
  std::uint64_t slots_for(const Admitted& admitted) const;
  bool has_slot(const Admitted& admitted, std::uint64_t number) const;
  bool can_reduce() const;
  bool can_collect() const;
  bool can_contribute() const;
  bool any_withdrawn() const;
  void contribute_one();
  void reduce_one();
  void collect_one();
  void finish_first();
  std::vector<std::uint32_t> late_in_chain(const Admitted& whole) const;

  std::uint64_t least(Counter RankWords::*counter) const;
  void publish(Counter RankWords::*counter, std::uint64_t value);
  void publish_contributed_to_chain(const Transfer& transfer);
  void publish_collected(std::uint64_t step, std::uint64_t slots);
  void ring_others();

  const GroupMemory& memory_;
  const std::uint32_t own_;
  Bells& bells_;
  Hands& hands_;
  std::deque<Admitted> transfers_;
  std::deque<Collected> for_network_;
  std::deque<std::uint64_t> finished_;
  bool chain_ = false;          // whether slots were last used by a chain
  bool stopped_ = false;        // arrays were withdrawn
  std::uint64_t queued_ = 0;    // bytes
  std::uint64_t admitted_ = 0;  // chunks
  std::uint64_t contributed_ = 0;
  std::uint64_t reduced_ = 0;
  std::uint64_t collected_ = 0;
};

}  // namespace shoal::local
