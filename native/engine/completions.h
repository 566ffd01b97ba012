// Operations that are done, for threads that see to what follows from each: whoever comes gets one that nobody has had.
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

  // `token`: what the one who asked to be told calls the operation. Nothing after close().
  void add(std::uint64_t token);
  // The one that waits longest; nothing if there is none for so long, or after close().
  std::optional<std::uint64_t> next(std::chrono::nanoseconds longest);
  // From now on nobody waits.
  void close();
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> tokens_;  // guarded by mutex_
  bool closed_ = false;               // guarded by mutex_
};

}  // namespace shoal::engine
