// Which bytes of a rank's arrays go to, and come from, which other rank of its node.
#pragma once

#include <cstdint>
#include <vector>

#include "base/range.h"

namespace shoal::shm {

struct Blocks {
  std::vector<Range> outgoing;         // by rank: what of this rank's input it needs
  std::vector<Range> incoming;         // by rank: where in this rank's output it is what comes from there
  std::vector<std::uint64_t> origins;  // by rank: where in its input that begins
  std::uint64_t largest = 0;           // of all that any rank has for another, or for itself: the same on every rank
  bool same = false;                   // all need the same of a rank, and it is in the slot once
};

}  // namespace shoal::shm
