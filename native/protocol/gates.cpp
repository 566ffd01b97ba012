#include "protocol/gates.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal {

namespace {

constexpr Time longest_patience = second;

}  // namespace

void Gates::hold(Submission submission, std::size_t record, Time now) {
  const std::uint64_t handle = submission.handle;
  const Time patience = std::min(longest_patience, submission.timeout / 2);
  const Time look_at = now + std::min(submission.timeout - patience, never - now);
  held_.emplace(handle, Held{std::move(submission), record, patience, look_at});
  bytes_ += record;
}

std::optional<Gates::Held> Gates::release(std::uint64_t handle, const std::string& problem) {
  const auto found = held_.find(handle);
  if (found == held_.end()) {
    return std::nullopt;
  }
  Held held = std::move(found->second);
  held.submission.awaits_input = false;
  held.submission.failure = problem;
  held_.erase(found);
  bytes_ -= held.record;
  return held;
}

Time Gates::deadline() const {
  Time first = never;
  for (const auto& [handle, held] : held_) {
    first = std::min(first, held.look_at);
  }
  return first;
}

std::vector<std::uint64_t> Gates::take_late(Time now) {
  std::vector<std::uint64_t> handles;
  for (auto& [handle, held] : held_) {
    if (held.look_at > now) {
      continue;
    }
    if (std::exchange(held.is_last_look, true)) {
      handles.push_back(handle);
    } else {
      held.look_at = now + held.patience;
    }
  }
  std::sort(handles.begin(), handles.end());
  return handles;
}

void Gates::check_invariants() const {
  std::size_t bytes = 0;
  for (const auto& [handle, held] : held_) {
    SHOAL_INVARIANT(held.submission.handle == handle && held.submission.awaits_input && held.submission.occurrence);
    bytes += held.record;
  }
  SHOAL_INVARIANT(bytes == bytes_);
}

}  // namespace shoal
