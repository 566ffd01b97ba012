// What the worker tells the local group on a leader: which chunks of results are there, and which operations have
// ended.
//
//   a chunk arrives once, when the last of its bytes does; an operation ends once; if it ended well, after its chunks
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/range.h"
#include "base/status.h"
#include "protocol/local/chunks.h"
#include "protocol/local/crossing.h"

namespace shoal::local {

// What the leaders have told each other of their blocks (crossing.h): one after the other, each so many bytes.
struct Told {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> by_node;
};

struct NetworkResult {
  std::uint64_t handle = 0;
  Range chunk;         // is there
  bool ended = false;  // the operation has ended; if well, all its chunks have arrived before
  Status status;
  Told told;
};

class NetworkResults {
 public:
  // `chunks`: of a large operation. Of a small one only the end arrives.
  void expect(std::uint64_t handle, const std::optional<Chunks>& chunks);
  // Memory for what the leaders tell each other, by node; null if the operation is not expected, or that is too much.
  std::byte* allocate(std::uint64_t handle, const std::vector<std::uint64_t>& by_node);
  // A part of the result is there; the operation has ended. Return whether there is something to take. Operations that
  // are not expected, or have ended, are ignored.
  bool received(std::uint64_t handle, Range range);
  bool ended(std::uint64_t handle, Status status);

  bool any() const { return !arrived_.empty(); }
  std::vector<NetworkResult> take() { return std::exchange(arrived_, {}); }

 private:
  struct Expected {
    Chunks chunks;
    std::vector<std::uint64_t> lacking;  // bytes, by chunk
    Told told;
  };

  std::unordered_map<std::uint64_t, Expected> expected_;
  std::vector<NetworkResult> arrived_;
};

}  // namespace shoal::local
