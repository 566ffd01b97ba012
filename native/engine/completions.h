// A queue of operations that are done. Each is given to one of the threads that run what follows.
//
// Every method may be called by any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

namespace shoal::engine {

class Completions {
 public:
  Completions() = default;
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;
  ~Completions() { close(); }

  // `token`: the name that the caller of Operation::tell() gave the operation. No effect after close().
  void add(std::uint64_t token);
  // The oldest one. Waits for one at most `longest`. Nothing if none comes, or after close().
  std::optional<std::uint64_t> next(std::chrono::nanoseconds longest);
  // From now on next() returns at once.
  void close();
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> tokens_;  // guarded by mutex_
  bool closed_ = false;               // guarded by mutex_
};

}  // namespace shoal::engine
