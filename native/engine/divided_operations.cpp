#include "engine/divided_operations.h"

#include <utility>

#include "base/range.h"
#include "protocol/sharding.h"

namespace shoal::engine {

namespace {

// For less, the hand-over to another thread takes longer than it saves.
constexpr std::size_t least_part = 256 * 1024;

}  // namespace

DividedOperations::DividedOperations(const JobConfig& config)
    : weights_(config.channel_weights()), divides_(config.channels > 1) {}

bool DividedOperations::divide(Submission& submission) {
  const bool is_divided = divides_ && submission.collective == Collective::all_reduce && submission.failure.empty() &&
                          submission.output != nullptr && submission.input_bytes == submission.output_bytes &&
                          submission.input_bytes >= least_part * weights_.size();
  if (!is_divided) {
    return false;
  }
  Divided divided;
  const std::byte* const input = submission.input;
  std::byte* const output = submission.output;
  const std::size_t bytes = submission.input_bytes;
  for (std::size_t channel = 0; channel < weights_.size(); ++channel) {
    const Range part = shard_of(bytes, weights_, channel);
    Submission& one = channel == 0 ? submission : divided.others.emplace_back(submission);
    one.offset = part.begin;
    one.input = input + part.begin;
    one.output = output + part.begin;
    one.input_bytes = one.output_bytes = part.size();
  }
  const std::lock_guard lock(mutex_);
  divided_.emplace(submission.handle, std::move(divided));
  return true;
}

std::vector<Submission> DividedOperations::number(std::uint64_t handle, std::uint32_t occurrence) {
  if (!divides_) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  const auto found = divided_.find(handle);
  if (found == divided_.end()) {
    return {};
  }
  std::vector<Submission> others = std::exchange(found->second.others, {});
  found->second.going_on += others.size();
  for (Submission& one : others) {
    one.occurrence = occurrence;
    one.awaits_input = false;  // the first part was opened, so it is there
    one.told = false;          // what follows from it the first part decides
  }
  return others;
}

bool DividedOperations::has(std::uint64_t handle) {
  if (!divides_) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  return divided_.contains(handle);
}

Status DividedOperations::failure_of(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = divided_.find(handle);
  return found == divided_.end() ? Status() : found->second.failure;
}

DividedOperations::Ended DividedOperations::end(std::uint64_t handle, Status status) {
  if (!divides_) {
    return {.status = std::move(status)};
  }
  const std::lock_guard lock(mutex_);
  const auto found = divided_.find(handle);
  if (found == divided_.end()) {
    return {.status = std::move(status)};
  }
  Divided& divided = found->second;
  const bool is_first = !status.ok() && divided.failure.ok();
  if (is_first) {
    divided.failure = std::move(status);
  }
  if (--divided.going_on > 0) {
    return {false, is_first, divided.failure};
  }
  Ended ended{.status = std::move(divided.failure)};
  divided_.erase(found);
  return ended;
}

}  // namespace shoal::engine
