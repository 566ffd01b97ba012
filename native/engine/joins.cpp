#include "engine/joins.h"

#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace shoal::engine {

bool Joins::begin(std::uint32_t group, Time timeout) {
  const std::lock_guard lock(mutex_);
  Join& join = joins_[group];
  if (join.timeout) {
    return false;
  }
  join.timeout = timeout;
  ++joined_;
  pool_.keep_within(std::numeric_limits<std::size_t>::max());
  return true;
}

void Joins::end(std::uint32_t group) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = joins_.find(group);
    if (found == joins_.end() || !std::exchange(found->second.timeout, std::nullopt)) {
      return;
    }
    if (--joined_ == 0) {
      pool_.keep_within(0);
      zeros_.reset();
      zeros_bytes_ = 0;
    }
  }
  changed_.notify_all();
}

std::optional<Time> Joins::timeout_in(std::uint32_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = joins_.find(group);
  return found == joins_.end() ? std::nullopt : found->second.timeout;
}

void Joins::note_made(std::uint32_t group) {
  {
    const std::lock_guard lock(mutex_);
    ++joins_[group].made;
  }
  changed_.notify_all();
}

std::uint64_t Joins::made(std::uint32_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = joins_.find(group);
  return found == joins_.end() ? 0 : found->second.made;
}

bool Joins::await(std::uint32_t group, std::uint64_t count, std::chrono::nanoseconds longest) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [&] {
    const auto found = joins_.find(group);
    return found == joins_.end() || !found->second.timeout || found->second.made >= count;
  });
}

// Memory that has just been mapped is zero, and takes no room before somebody writes to it.
Joins::Arrays Joins::arrays(std::size_t bytes) {
  Arrays arrays;
  std::shared_ptr<Buffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (zeros_bytes_ < bytes) {
      auto* const zeros = static_cast<std::byte*>(std::calloc(bytes, 1));
      if (zeros == nullptr) {
        throw std::bad_alloc();
      }
      zeros_.reset(zeros, [](const std::byte* gone) { std::free(const_cast<std::byte*>(gone)); });
      zeros_bytes_ = bytes;
    }
    arrays.zeros = zeros_;
    const auto give_back = [this](Buffer* gone) {
      const std::lock_guard pool_lock(mutex_);
      delete gone;
    };
    buffer.reset(new Buffer(pool_.take(bytes)), give_back);
  }
  arrays.result = {buffer, buffer->data()};
  return arrays;
}

}  // namespace shoal::engine
