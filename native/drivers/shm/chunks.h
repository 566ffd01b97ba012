// How a large operation is cut into the chunks that move through the node's slots.
//
// What goes on to servers is cut into as many parts as there are servers, and the chunks of the parts take turns, so
// that every server soon has something to add.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/limits.h"
#include "base/range.h"

namespace shoal::shm {

class Chunks {
 public:
  Chunks() = default;
  Chunks(std::uint64_t bytes, std::uint64_t chunk, std::uint32_t parts)
      : bytes_(bytes), chunk_(chunk), parts_(parts), part_(aligned(divided(bytes, parts))) {}

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t count() const { return parts_ * divided(part_, chunk_); }

  // May be empty: the last parts can be shorter than the others.
  Range at(std::uint64_t number) const {
    const std::uint64_t begin = number % parts_ * part_;
    const std::uint64_t end = std::min(begin + part_, bytes_);
    const std::uint64_t from = begin + number / parts_ * chunk_;
    return from < end ? Range{from, std::min(from + chunk_, end)} : Range{};
  }

  // The number of the chunk that this byte is in.
  std::uint64_t holding(std::uint64_t offset) const { return offset % part_ / chunk_ * parts_ + offset / part_; }

 private:
  static std::uint64_t divided(std::uint64_t what, std::uint64_t by) { return (what + by - 1) / by; }
  static std::uint64_t aligned(std::uint64_t bytes) {
    return divided(bytes, limits::shard_alignment) * limits::shard_alignment;
  }

  std::uint64_t bytes_ = 0;
  std::uint64_t chunk_ = 1;
  std::uint64_t parts_ = 1;
  std::uint64_t part_ = 1;
};

}  // namespace shoal::shm
