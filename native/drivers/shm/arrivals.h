// What the network's thread tells the local group of a node's first rank: which chunks of results are there, and which
// operations have ended. Taken up by whoever takes the group's next steps. Every method may be called by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/range.h"
#include "base/status.h"
#include "protocol/local/chunks.h"

namespace shoal::shm {

struct Arrival {
  std::uint64_t handle = 0;  // of the operation
  Range chunk;               // is there
  bool ended = false;        // all chunks of one that ended well have been told before
  Status status;
};

class Arrivals {
 public:
  // `chunks`: of a large operation; of a small one only the end is told.
  void expect(std::uint64_t handle, const std::optional<local::Chunks>& chunks);
  // Parts of the result are there, or it has ended. Whether there is something to be taken. What was not expected, or
  // has ended, is ignored.
  bool received(std::uint64_t handle, Range range);
  bool ended(std::uint64_t handle, Status status);

  std::vector<Arrival> take();

 private:
  struct Expected {
    local::Chunks chunks;
    std::vector<std::uint64_t> lacking;  // bytes, by chunk
  };

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Expected> expected_;  // guarded by mutex_
  std::vector<Arrival> arrived_;                          // guarded by mutex_
  std::atomic<bool> any_{false};                          // whether there are any of those
};

}  // namespace shoal::shm
