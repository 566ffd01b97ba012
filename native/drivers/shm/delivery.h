// Results that came over the network, from the first rank to the others of its node: chunk by chunk through slots of
// their own, so that they do not hold up what still goes the other way.
//
//   (the first rank's) put ≤ (the least of the others') taken + slots
//
// Which chunk of what a slot holds, the first rank says in its mailbox, in the order of the slots.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/range.h"
#include "drivers/shm/memory.h"

namespace shoal::shm {

class Delivery {
 public:
  struct Part {
    std::uint64_t name = 0;      // of the operation, the caller's
    std::byte* array = nullptr;  // all of it
    Range range;
  };

  Delivery(const Memory& memory, std::uint32_t own) : memory_(memory), own_(own) {}

  // The first rank: this part of the result is to be put into a slot. Another rank: it is in the next slot.
  void add(const Part& part) { parts_.push_back(part); }
  // Whether step() would do something, and that: one part.
  bool ready() const;
  bool step();
  // The next part that was put, or taken.
  std::optional<Part> take_done();

 private:
  std::uint64_t least_taken() const;

  const Memory& memory_;
  std::uint32_t own_;
  std::deque<Part> parts_;
  std::deque<Part> done_;
  std::uint64_t moved_ = 0;  // parts
};

}  // namespace shoal::shm
