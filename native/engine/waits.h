// What the threads of this process wait for, for the worker: WorkerWorld::Waiting. Nothing counts as blocked until it
// is known whether there are threads that have never called Shoal, but might.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "engine/open_operations.h"
#include "protocol/machine.h"

namespace shoal::engine {

// With a timeout up to this, a program only tries an operation, and goes on if nobody comes. While such an operation is
// open, the rank's wait ends by itself.
inline constexpr Time short_timeout = 120 * second;

class Waits {
 public:
  // `operations` lives longer.
  explicit Waits(const OpenOperations& operations) : operations_(operations) {}

  struct Look {
    WorkerWorld::Waiting waiting;
    std::optional<std::uint32_t> ask;  // ask which threads there are, with this number
  };
  // `leaves`: this rank is leaving, so no thread can call anything.
  Look look(bool leaves);
  // The answer: how many threads have never called Shoal, but might.
  void note_threads(std::uint32_t attempt, std::size_t strangers);

 private:
  const OpenOperations& operations_;
  std::mutex mutex_;
  // Guarded by mutex_. asked_at_: the change at which a question is open; known_at_ and strangers_: the change of the
  // last answer, and the answer. While there are such threads the question is repeated, since they may have ended.
  std::uint32_t asked_at_ = 0;
  std::uint32_t known_at_ = 0;
  std::size_t strangers_ = 0;
};

}  // namespace shoal::engine
