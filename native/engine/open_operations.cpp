#include "engine/open_operations.h"

#include <atomic>
#include <utility>

namespace shoal::engine {

std::shared_ptr<Operation> OpenOperations::open(const std::shared_ptr<shm::SharedGroup>& group, bool passes) {
  static std::atomic<std::uint64_t> last_handle{0};
  const std::uint64_t handle = ++last_handle;
  const std::lock_guard lock(mutex_);
  if (passes) {
    passing_.insert(handle);
  }
  return open_.emplace(handle, std::make_shared<Operation>(handle, group)).first->second;
}

std::shared_ptr<Operation> OpenOperations::at(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  return open_.at(handle);
}

std::shared_ptr<Operation> OpenOperations::find(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto place = open_.find(handle);
  return place == open_.end() ? nullptr : place->second;
}

void OpenOperations::finish(std::uint64_t handle, Status status) {
  std::shared_ptr<Operation> operation;
  {
    const std::lock_guard lock(mutex_);
    const auto place = open_.find(handle);
    if (place == open_.end()) {
      return;
    }
    operation = std::move(place->second);
    open_.erase(place);
    passing_.erase(handle);
    finished_.push_back(handle);
    ++finished_count_;
  }
  operation->finish(std::move(status));
}

void OpenOperations::finish_all(const Status& status) {
  std::vector<std::uint64_t> handles;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, operation] : open_) {
      handles.push_back(handle);
    }
  }
  for (std::uint64_t handle : handles) {
    finish(handle, status);
  }
}

std::vector<std::uint64_t> OpenOperations::take_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

std::vector<std::uint64_t> OpenOperations::handles(bool told_only) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> handles;
  for (const auto& [handle, operation] : open_) {
    if (!told_only || operation->will_tell()) {
      handles.push_back(handle);
    }
  }
  return handles;
}

OpenOperations::Counts OpenOperations::counts() const {
  const std::lock_guard lock(mutex_);
  return {open_.size(), finished_count_, passing_.size()};
}

}  // namespace shoal::engine
