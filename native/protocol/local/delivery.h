// Results that came over the network, from the first rank to the others of its node: chunk by chunk, so that they do
// not hold up what still goes the other way.
//
// Through slots of their own: the first rank puts a part in, the others take it out.
//
//   (the first rank's) handed out ≤ (the least of the others') taken + slots
//
// Straight, where the arrays of all ranks lie in the shared memory: the others copy a part from the first rank's
// output, which it *lends* them: its operation does not end before all have taken what they were told of. Should
// everything end before, it says so (`withdrawn`), and what is copied later does not count.
//
// What a part is of, and where, the first rank says in its mailbox. One number after the other counts both kinds.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/range.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/world.h"

namespace shoal::local {

class Delivery {
 public:
  struct Part {
    std::uint64_t handle = 0;         // of the operation
    std::byte* array = nullptr;       // all of this rank's output
    Range range;                      // of it
    const std::byte* lent = nullptr;  // all of the first rank's output; null: through a slot
  };

  Delivery(const GroupMemory& memory, std::uint32_t own, Bells& bells, Hands& hands)
      : memory_(memory), own_(own), bells_(bells), hands_(hands) {}

  // The first rank: this part of the result is for the others. Another rank: it is in the next slot, or lent.
  void add(const Part& part);
  // Those parts of an operation that have not been handed out never will be. How many they were.
  std::size_t drop(std::uint64_t handle);
  // Whether step() would do something, and that: one part.
  bool ready() const;
  bool step();
  // The next part that was handed out, or taken.
  std::optional<Part> take_done();
  // The next lent one that all others have taken: on the first rank.
  std::optional<Part> take_returned();
  // The ranks that have taken the least.
  std::vector<std::uint32_t> late() const;

  void check_invariants() const;

 private:
  struct Lent {
    Part part;
    std::uint64_t end;  // the least taken when it is returned
  };

  void lend();
  void note_moved(const Part& part);
  std::uint64_t least_taken() const;

  const GroupMemory& memory_;
  const std::uint32_t own_;
  Bells& bells_;
  Hands& hands_;
  std::deque<Part> parts_;
  std::deque<Part> done_;
  std::deque<Lent> lent_;
  std::uint64_t moved_ = 0;  // parts
};

}  // namespace shoal::local
