// The groups in which this rank has joined: how long what it calls there may wait, how many calls it has made for
// others, and the arrays of those (protocol/joining.h).
//
// Every method may be called by any thread. Memory is reused while this rank has joined somewhere.
//
//   the pool and the zeros keep nothing while this rank has joined nowhere
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/buffer.h"
#include "protocol/machine.h"

namespace shoal::engine {

class Joins {
 public:
  Joins() = default;
  Joins(const Joins&) = delete;
  Joins& operator=(const Joins&) = delete;

  // False: it has joined there already.
  bool begin(std::uint32_t group, Time timeout);
  void end(std::uint32_t group);
  // None: this rank has not joined there.
  std::optional<Time> timeout_in(std::uint32_t group) const;

  // A call for others has ended, perhaps after the join.
  void note_made(std::uint32_t group);
  // How many have ever.
  std::uint64_t made(std::uint32_t group) const;
  // Waits until so many have, or this rank has joined there no more, at most `longest`. Returns whether that is so.
  bool await(std::uint32_t group, std::uint64_t count, std::chrono::nanoseconds longest) const;

  // What a call of so many bytes gives and where its result goes, until the last copy of a pointer is gone, which this
  // must outlive. All calls give the same zeros, which nobody writes to: no time is spent on filling them for each.
  // Throws std::bad_alloc.
  struct Arrays {
    std::shared_ptr<const std::byte> zeros;
    std::shared_ptr<std::byte> result;
  };
  Arrays arrays(std::size_t bytes);

 private:
  struct Join {
    std::optional<Time> timeout;  // while this rank has joined
    std::uint64_t made = 0;
  };

  static constexpr std::size_t kept_bytes = 256 * 1024 * 1024;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint32_t, Join> joins_;     // by group, for ever; guarded by mutex_
  std::size_t joined_ = 0;                  // in how many groups; guarded by mutex_
  BufferPool pool_{kept_bytes};             // guarded by mutex_
  std::shared_ptr<const std::byte> zeros_;  // guarded by mutex_
  std::size_t zeros_bytes_ = 0;             // guarded by mutex_
};

}  // namespace shoal::engine
