#include "engine/joins.h"

#include <cstring>
#include <limits>
#include <utility>

namespace shoal::engine {

bool Joins::begin(std::uint32_t group, Time timeout) {
  const std::lock_guard lock(mutex_);
  pool_.keep_within(std::numeric_limits<std::size_t>::max());
  return joined_.emplace(group, Join{timeout, 0}).second;
}

void Joins::end(std::uint32_t group) {
  const std::lock_guard lock(mutex_);
  joined_.erase(group);
  if (joined_.empty()) {
    pool_.keep_within(0);
  }
}

std::optional<Time> Joins::timeout_in(std::uint32_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = joined_.find(group);
  return found == joined_.end() ? std::nullopt : std::optional(found->second.timeout);
}

void Joins::note_made(std::uint32_t group) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = joined_.find(group); found != joined_.end()) {
      ++found->second.made;
    }
  }
  changed_.notify_all();
}

std::uint64_t Joins::made(std::uint32_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = joined_.find(group);
  return found == joined_.end() ? 0 : found->second.made;
}

bool Joins::await(std::uint32_t group, std::uint64_t count, std::chrono::nanoseconds longest) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [&] {
    const auto found = joined_.find(group);
    return found == joined_.end() || found->second.made >= count;
  });
}

std::shared_ptr<std::byte> Joins::zeros(std::size_t bytes) {
  std::shared_ptr<Buffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto give_back = [this](Buffer* gone) {
      const std::lock_guard pool_lock(mutex_);
      delete gone;
    };
    buffer.reset(new Buffer(pool_.take(bytes)), give_back);
  }
  std::memset(buffer->data(), 0, bytes);
  std::byte* const data = buffer->data();
  return {std::move(buffer), data};
}

}  // namespace shoal::engine
