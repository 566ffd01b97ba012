// What became of an operation, and when, for a timeline: apart from the operation, so that whoever keeps it keeps no
// output.
//
//   until has_ended() one thread at a time notes what it came to (OpenOperations::note); from then on it is constant
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/status.h"

namespace shoal::engine {

class Course {
 public:
  using Time = std::chrono::steady_clock::time_point;  // the clock's epoch: it has not come to that

  // How often the group had used the operation's name before, as in its key. None: it has none yet, or has ended
  // without.
  std::optional<std::uint32_t> occurrence() const {
    const std::int64_t known = occurrence_.load(std::memory_order_relaxed);
    return known < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(known));
  }
  void number(std::uint32_t occurrence) { occurrence_.store(occurrence, std::memory_order_relaxed); }

  // Before it ends.
  Time input_ready;
  Time sent;
  Time all_called;  // when this rank heard that all members have called it
  Time first_result;
  std::uint64_t flush = 0;  // operations with the same one were written together; 0: it was written alone

  void end(Code code, Time at) {
    code_ = code;
    ended_at_ = at;
    has_ended_.store(true, std::memory_order_release);
  }
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  Code code() const { return code_; }
  Time ended_at() const { return ended_at_; }

 private:
  std::atomic<std::int64_t> occurrence_{-1};
  std::atomic<bool> has_ended_{false};
  Code code_ = Code::ok;
  Time ended_at_;
};

}  // namespace shoal::engine
