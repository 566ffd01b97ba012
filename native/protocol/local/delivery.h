// Passes results from the network on, from the leader to the others of its node: part by part, so that they do not
// hold up contributions that still go the other way. A part goes in one of two ways:
//
//   * Through a slot for results: the leader copies the part in, the others copy it out.
//
//       parts handed out by the leader ≤ parts taken by the slowest other rank + slots
//
//   * Lent, if the arrays of all ranks lie in the shared memory: the others copy the part from the leader's
//     output. The leader's operation does not end before all have copied the parts that they were told of. If it
//     must end earlier, the leader sets `withdrawn`, and later copies do not count.
//
// The leader says in its mailbox which operation and range a part belongs to. One counter counts parts of both
// kinds.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/range.h"
#include "protocol/local/crossing.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/world.h"

namespace shoal::local {

class Delivery {
 public:
  struct ResultPart {
    std::uint64_t handle = 0;         // of the operation
    std::byte* array = nullptr;       // all of this rank's output; on the leader all of the result
    Range range;                      // of the result
    const std::byte* lent = nullptr;  // all of the leader's output; null: through a slot
    // On another rank than the leader: what of the result this rank gets, and where it goes in the array; null: all.
    const std::vector<Piece>* takes = nullptr;
  };

  Delivery(const GroupMemory& memory, std::uint32_t own, Bells& bells, Hands& hands)
      : memory_(memory), own_(own), bells_(bells), hands_(hands) {}

  // On the leader: hand this part out. On another rank: take it, from the next slot or lent.
  void add(const ResultPart& part);
  // Parts of the operation that have not been handed out never will be. Returns how many there were.
  std::size_t drop(std::uint64_t handle);
  // step() moves one part; ready(): whether it can.
  bool ready() const;
  bool step();
  // The next part that was handed out, or taken.
  std::optional<ResultPart> take_done();
  // On the leader: the next lent part that all others have taken.
  std::optional<ResultPart> take_returned();
  // The ranks that have taken the least.
  std::vector<std::uint32_t> late() const;

  void check_invariants() const;

 private:
  struct Lent {
    ResultPart part;
    std::uint64_t end;  // it is returned when every other rank has taken so many parts
  };

  void lend();
  void note_moved(const ResultPart& part);
  std::uint64_t least_taken() const;

  const GroupMemory& memory_;
  const std::uint32_t own_;
  Bells& bells_;
  Hands& hands_;
  std::deque<ResultPart> parts_;
  std::deque<ResultPart> done_;
  std::deque<Lent> lent_;
  std::uint64_t moved_ = 0;  // parts
};

}  // namespace shoal::local
