// What the worker tells the local group of a node's first rank, chunk by chunk: which chunks of results are there, and
// which operations have ended.
//
//   a chunk arrives once, when the last of its bytes does; an operation ends once, after the chunks of one that ended
//   well
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/range.h"
#include "base/status.h"
#include "protocol/local/chunks.h"

namespace shoal::local {

struct Arrival {
  std::uint64_t handle = 0;
  Range chunk;         // is there
  bool ended = false;  // all chunks of one that ended well have been told before
  Status status;
};

class Arrivals {
 public:
  // `chunks`: of a large operation; of a small one only the end is told.
  void expect(std::uint64_t handle, const std::optional<Chunks>& chunks);
  // Parts of the result are there, or it has ended. Whether there is something to be taken. What was not expected, or
  // has ended, is ignored.
  bool received(std::uint64_t handle, Range range);
  bool ended(std::uint64_t handle, Status status);

  bool any() const { return !arrived_.empty(); }
  std::vector<Arrival> take() { return std::exchange(arrived_, {}); }

 private:
  struct Expected {
    Chunks chunks;
    std::vector<std::uint64_t> lacking;  // bytes, by chunk
  };

  std::unordered_map<std::uint64_t, Expected> expected_;
  std::vector<Arrival> arrived_;
};

}  // namespace shoal::local
