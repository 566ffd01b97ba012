// Whether the thread that calls a short operation waits for its end, instead of leaving it to the finishers.
//
// To be handed from thread to thread twice takes many times as long as a short operation. So where a program calls one
// operation after another, its thread waits for each. Where it calls several at once, none waits: they travel together.
//
// Promises:
//   * A thread waits no longer than `longest`, or a piece of another operation that it carries out meanwhile, and for
//     none of many_bytes or more.
//   * Threads do not wait where operations have lately taken longer, nor where others are open.
//
// Every method may be called by any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace shoal::doors {

class ShortWaits {
 public:
  static constexpr std::chrono::microseconds longest{100};
  static constexpr std::size_t many_bytes = 64 * 1024;

  // An operation is about to be submitted. Whether its thread is to wait for it.
  bool begin(std::size_t bytes) {
    if (open_.fetch_add(1) > 0) {
      std::int64_t row = after_another_;
      // A pause goes on.
      while (row > 0 && !after_another_.compare_exchange_weak(row, 0)) {
      }
      return false;
    }
    const std::int64_t row = ++after_another_;
    return bytes < many_bytes && row >= enough && row % look_again != 0;
  }
  // The thread that was to wait has waited. `well`: the operation has ended.
  void waited(bool well) {
    if (well) {
      pause_ = shortest_pause;
    } else {
      after_another_ = -pause_;
      pause_ = std::min(2 * pause_.load(), longest_pause);
    }
  }
  // Before anything follows its end.
  void end() { --open_; }

 private:
  // Calls in a row, each when the one before has ended, after which threads wait.
  static constexpr std::int64_t enough = 8;
  // Of so many one does not wait: else a program with one thread would never call two at once.
  static constexpr std::int64_t look_again = 1024;
  // So many calls do without after one that has waited in vain; after the next one in a row twice as many, up to as
  // many as `longest` may be lost in without being felt.
  static constexpr std::int64_t shortest_pause = 8;
  static constexpr std::int64_t longest_pause = 1024;

  std::atomic<std::int64_t> open_{0};
  std::atomic<std::int64_t> after_another_{0};
  std::atomic<std::int64_t> pause_{shortest_pause};
};

}  // namespace shoal::doors
