#include "engine/open_operations.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace shoal::engine {

namespace {

std::uint64_t new_handle() {
  static std::atomic<std::uint64_t> last_handle{0};
  return ++last_handle;
}

}  // namespace

std::shared_ptr<Operation> OpenOperations::open(const std::shared_ptr<shm::SharedGroup>& group, bool passes,
                                                std::optional<Returning> returning, std::optional<std::uint32_t> number,
                                                std::shared_ptr<Course> course) {
  const std::uint64_t handle = new_handle();
  const std::lock_guard lock(mutex_);
  if (passes) {
    passing_.insert(handle);
  }
  if (returning) {
    returning_.emplace(handle, std::move(*returning));
  }
  if (number) {
    called_.resize(std::max<std::size_t>(called_.size(), *number + std::size_t{1}));
    ++called_[*number];
  }
  auto made = std::make_shared<Operation>(handle, group, number, Operation::FollowUp(), std::move(course));
  return open_.emplace(handle, std::move(made)).first->second;
}

std::shared_ptr<Operation> OpenOperations::open_for_others(const std::shared_ptr<shm::SharedGroup>& group,
                                                           Operation::FollowUp follow_up) {
  const std::uint64_t handle = new_handle();
  auto made = std::make_shared<Operation>(handle, group, std::nullopt, std::move(follow_up));
  const std::lock_guard lock(mutex_);
  return open_.emplace(handle, std::move(made)).first->second;
}

Called OpenOperations::take_called(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  Called called;
  if (number < called_.size()) {
    called.count = std::exchange(called_[number], 0);
  }
  for (const auto& [handle, operation] : open_) {
    if (operation->number() == number) {
      called.open.push_back(operation);
    }
  }
  return called;
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
  std::optional<Returning> returning;
  {
    const std::lock_guard lock(mutex_);
    const auto place = open_.find(handle);
    if (place == open_.end()) {
      return;
    }
    operation = std::move(place->second);
    open_.erase(place);
    passing_.erase(handle);
    if (const auto gated = returning_.empty() ? returning_.end() : returning_.find(handle); gated != returning_.end()) {
      returning = std::move(gated->second);
      returning_.erase(gated);
    } else {
      note_finished(handle);
    }
  }
  if (returning) {
    // First: whoever hears that it is done may let go of its arrays.
    pass(*returning, status.ok());
    const std::lock_guard lock(mutex_);
    note_finished(handle);
  }
  operation->finish(std::move(status));
}

void OpenOperations::note_finished(std::uint64_t handle) {
  finished_.push_back(handle);
  ++finished_count_;
}

void OpenOperations::pass(const Returning& returning, bool well) {
  if (well || returning.gate.is_open()) {
    return returning.pass(well);
  }
  // What a device that has failed still does to the memory nobody knows, and nobody will read it there.
  const auto told = [returning](const std::string& problem) {
    problem.empty() ? returning.pass(false) : returning.gate.pass();
  };
  if (!gates_.add(returning.gate, told, true)) {
    returning.gate.pass();
  }
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
