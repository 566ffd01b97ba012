#include "protocol/call_registry.h"

#include <utility>

#include "base/invariant.h"
#include "base/limits.h"
#include "protocol/keys.h"

namespace shoal {

namespace {

const std::string& name_or_unnamed(const std::string& name) {
  static const std::string none = unnamed;
  return name.empty() ? none : name;
}

}  // namespace

Status limit_reached(const std::string& what, const char* limit, std::size_t allowed, const std::string& advice,
                     std::uint32_t rank, const JobConfig& config) {
  return Status::error(Code::limit,
                       what + " take all the memory that they may on " + rank_text(rank, config) + ", " +
                           bytes_text(allowed) + " (" + limit + "): " + advice,
                       static_cast<std::int32_t>(rank));
}

Status was_called_before() { return Status::error(Code::cancelled, "this rank has called it already"); }

CallRegistry::CallRegistry(const JobConfig& config, std::uint32_t rank) : config_(config), rank_(rank) {}

Status CallRegistry::problem_with_name(const Hash128& group, const std::string& name) const {
  if (std::string problem = shoal::problem_with_name(name); !problem.empty()) {
    return Status::error(Code::failed_on_rank, std::move(problem), static_cast<std::int32_t>(rank_));
  }
  const std::size_t names = occurrences_.size();
  const bool is_full = names * name_bytes >= config_.tables.names;
  if (is_full && !occurrences_.contains(operation_key(group, name_or_unnamed(name), 0))) {
    return limit_reached("the names of operations", "names_bytes", config_.tables.names,
                         std::to_string(names) + " names were used; use the same names in every step", rank_, config_);
  }
  return {};
}

void CallRegistry::name_call(wire::Opening& opening, const Hash128& group, const Hash128& keys,
                             const Submission& submission) {
  opening.name = name_or_unnamed(submission.name);
  opening.group = group;
  opening.occurrence =
      submission.occurrence ? *submission.occurrence : take_number(operation_key(group, opening.name, 0));
  opening.key = operation_key(keys, opening.name, opening.occurrence);
}

void CallRegistry::number_call(Submission& submission, const Hash128& group) {
  if (!submission.occurrence) {
    submission.occurrence = take_number(operation_key(group, name_or_unnamed(submission.name), 0));
  }
}

std::uint32_t CallRegistry::take_number(const Hash128& first) {
  std::uint32_t& next = occurrences_[first];
  const std::uint32_t number = next++;
  if (!ahead_.empty()) {
    pass_ahead(first, next);
  }
  return number;
}

void CallRegistry::pass_ahead(const Hash128& first, std::uint32_t& next) {
  const auto found = ahead_.find(first);
  if (found == ahead_.end()) {
    return;
  }
  while (found->second.erase(next) > 0) {
    ++next;
  }
  if (found->second.empty()) {
    ahead_.erase(found);
  }
}

bool CallRegistry::note_told(const Submission& submission, const Hash128& group) {
  const Hash128 first = operation_key(group, name_or_unnamed(submission.name), 0);
  const std::uint32_t number = *submission.occurrence;
  std::uint32_t& next = occurrences_[first];
  if (number > next) {
    return ahead_[first].insert(number).second;
  }
  if (number < next) {
    return false;
  }
  ++next;
  pass_ahead(first, next);
  return true;
}

bool CallRegistry::has_called(const wire::Call& call) const {
  const Hash128 first = operation_key(call.group, call.name, 0);
  const auto calls = occurrences_.find(first);
  if (calls != occurrences_.end() && calls->second > call.occurrence) {
    return true;
  }
  const auto ahead = ahead_.find(first);
  return ahead != ahead_.end() && ahead->second.contains(call.occurrence);
}

Status CallRegistry::problem_with(const Submission& submission, std::size_t open, bool was_held) const {
  const auto here = static_cast<std::int32_t>(rank_);
  if (submission.failure_code != Code::ok) {
    return Status::error(submission.failure_code, submission.failure, submission.failure_rank);
  }
  if (!submission.failure.empty()) {
    return Status::error(Code::failed_on_rank, submission.failure, here);
  }
  if (submission.shape.size() > limits::dimensions) {
    return Status::error(Code::failed_on_rank,
                         "arrays have at most " + std::to_string(limits::dimensions) + " dimensions", here);
  }
  if (open_bytes_ >= config_.tables.open && !was_held) {
    return limit_reached("the operations that are open", "open_bytes", config_.tables.open,
                         std::to_string(open) + " are open; wait for some of them", rank_, config_);
  }
  return {};
}

void CallRegistry::add(std::size_t record) {
  ++open_;
  open_bytes_ += record;
}

void CallRegistry::remove(std::size_t record) {
  --open_;
  open_bytes_ -= record;
}

void CallRegistry::add_failed(std::size_t record) {
  ++failed_;
  failed_bytes_ += record;
}

void CallRegistry::remove_failed(std::size_t record) {
  --failed_;
  failed_bytes_ -= record;
}

void CallRegistry::check_invariants() const {
  SHOAL_INVARIANT(occurrences_.empty() || (occurrences_.size() - 1) * name_bytes < config_.tables.names);
  for (const auto& [first, numbers] : ahead_) {
    SHOAL_INVARIANT(!numbers.empty() && *numbers.begin() > occurrences_.at(first));
  }
  SHOAL_INVARIANT(open_ > 0 || open_bytes_ == 0);
  SHOAL_INVARIANT(failed_ > 0 || failed_bytes_ == 0);
}

}  // namespace shoal
