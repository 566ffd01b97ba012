// What the threads of this process wait for, as a worker is to say it: WorkerWorld::Waiting. It is in doubt while it is
// not known which threads there are that have never called anything, and while it is, nothing counts as blocked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "engine/open_operations.h"
#include "protocol/machine.h"

namespace shoal::engine {

// An operation with a timeout up to this is one that a program tries, to go on if nobody comes: while one is open, what
// its rank waits for ends by itself.
inline constexpr Time short_timeout = 120 * second;

class Waits {
 public:
  // `operations` lives longer.
  explicit Waits(const OpenOperations& operations) : operations_(operations) {}

  struct Look {
    WorkerWorld::Waiting waiting;
    std::optional<std::uint32_t> ask;  // which threads there are, with this number
  };
  // `leaves`: nothing can be called any more, whatever threads do.
  Look look(bool leaves);
  // The answer: how many threads might call that never have.
  void note_threads(std::uint32_t attempt, std::size_t strangers);

 private:
  const OpenOperations& operations_;
  std::mutex mutex_;
  // Guarded by mutex_: at which change it was asked about threads without an answer yet; at which it was answered, and
  // what. As long as there are such threads it is asked again: they may have ended.
  std::uint32_t asked_at_ = 0;
  std::uint32_t known_at_ = 0;
  std::size_t strangers_ = 0;
};

}  // namespace shoal::engine
