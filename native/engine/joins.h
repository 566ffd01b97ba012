// The groups in which this rank has joined: how long what it calls there may wait, how many calls it has made for
// others, and the zeros that it contributes (protocol/joining.h).
//
// Every method may be called by any thread. Zeros are reused while this rank has joined somewhere.
//
//   the pool keeps nothing while this rank has joined nowhere
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

  // A call for others has ended.
  void note_made(std::uint32_t group);
  std::uint64_t made(std::uint32_t group) const;
  // Waits until so many have, at most `longest`. Returns whether that is so.
  bool await(std::uint32_t group, std::uint64_t count, std::chrono::nanoseconds longest) const;

  // So many bytes, all zero, until the last copy of the pointer is gone, which this must outlive. Throws
  // std::bad_alloc.
  std::shared_ptr<std::byte> zeros(std::size_t bytes);

 private:
  struct Join {
    Time timeout = 0;
    std::uint64_t made = 0;
  };

  static constexpr std::size_t kept_bytes = 256 * 1024 * 1024;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint32_t, Join> joined_;  // by group; guarded by mutex_
  BufferPool pool_{kept_bytes};           // guarded by mutex_
};

}  // namespace shoal::engine
