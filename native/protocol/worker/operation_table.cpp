#include "protocol/worker/operation_table.h"

#include <utility>

#include "base/invariant.h"

namespace shoal::worker {

Operation& OperationTable::open(std::unique_ptr<Operation> operation) {
  Operation& opened = *operation;
  if (opened.submission().streamed && !opened.failed_here()) {
    streamed_.emplace(opened.handle(), opened.number());
  }
  open_.emplace(opened.number(), std::move(operation));
  return opened;
}

std::unique_ptr<Operation> OperationTable::close(std::uint64_t number) {
  std::unique_ptr<Operation> operation = std::move(open_.extract(number).mapped());
  if (operation->submission().streamed && !operation->failed_here()) {
    streamed_.erase(operation->handle());
  }
  return operation;
}

void OperationTable::keep_finished(std::unique_ptr<Operation> operation) {
  const std::uint64_t number = operation->number();
  finished_.emplace(number, std::move(operation));
}

std::unique_ptr<Operation> OperationTable::forget_finished(std::uint64_t number) {
  return std::move(finished_.extract(number).mapped());
}

Operation* OperationTable::find_any(std::uint64_t number) const {
  Operation* operation = find(number);
  return operation != nullptr ? operation : find_finished(number);
}

Operation* OperationTable::find_going_on(std::uint64_t number) const {
  Operation* operation = find_any(number);
  return operation != nullptr && operation->goes_on() ? operation : nullptr;
}

Operation* OperationTable::find_streamed(std::uint64_t handle) const {
  const auto number = streamed_.find(handle);
  return number == streamed_.end() ? nullptr : find(number->second);
}

Operation* OperationTable::find_open(std::uint64_t handle) const {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [handle](const auto& entry) { return entry.second->handle() == handle; });
  return found == open_.end() ? nullptr : found->second.get();
}

bool OperationTable::others_need_some() const {
  return std::any_of(finished_.begin(), finished_.end(),
                     [](const auto& entry) { return entry.second->failure().ok(); });
}

void OperationTable::check_invariants() const {
  for (const auto& [number, operation] : open_) {
    SHOAL_INVARIANT(number == operation->number() && was_given(number));
    SHOAL_INVARIANT(!operation->is_finished());
    operation->check_invariants();
  }
  for (const auto& [number, operation] : finished_) {
    SHOAL_INVARIANT(number == operation->number() && was_given(number));
    SHOAL_INVARIANT(operation->is_finished() && !open_.contains(number));
    operation->check_invariants();
  }
  for (const auto& [handle, number] : streamed_) {
    const Operation* operation = find(number);
    SHOAL_INVARIANT(operation != nullptr && operation->handle() == handle);
  }
}

}  // namespace shoal::worker
