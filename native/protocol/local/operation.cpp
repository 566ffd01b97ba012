#include "protocol/local/operation.h"

#include "base/invariant.h"

namespace shoal::local {

std::optional<wire::Opening> Operation::any_opening() const {
  if (called && !opening.failed) {
    return opening;
  }
  const std::vector<wire::Opening> others = calls.others();
  const auto sound = std::find_if(others.begin(), others.end(), [](const wire::Opening& one) { return !one.failed; });
  if (sound != others.end()) {
    return *sound;
  }
  return called ? std::optional(opening) : others.empty() ? std::nullopt : std::optional(others.front());
}

bool Operation::may_be(bool goes_up) const {
  std::vector<wire::Opening> known = calls.others();
  if (called) {
    known.push_back(opening);
  }
  std::erase_if(known, [](const wire::Opening& one) { return one.failed; });
  return !calls.all() || known.empty() || std::any_of(known.begin(), known.end(), [goes_up](const wire::Opening& one) {
    return traits_of(one.collective).goes_up() == goes_up;
  });
}

void Operation::release_arrays() {
  arranged = Buffer();
  array = Buffer();
  told = {};
}

bool Operation::contributes(std::uint32_t own) const {
  return !traits_of(opening.collective).root_gives_alone() || group->here.at(opening.root) == own;
}

// As here and as encoded, with what is known of each rank's call; other ranks have the same of it.
std::size_t record_bytes(const Submission& submission, std::size_t ranks) {
  constexpr std::size_t entries = 512;
  const std::size_t listed = 8 * (submission.shape.size() + submission.splits.size());
  return sizeof(Operation) + entries + ranks * Calls::bytes_per_rank() +
         3 * (submission.name.size() + submission.failure.size() + listed);
}

void Operation::check_invariants() const {
  calls.check_invariants();
  internode_state.check_invariants();
  SHOAL_INVARIANT(called || state == State::assembling || state == State::over);
  SHOAL_INVARIANT(called == (group != nullptr) || !called);
  SHOAL_INVARIANT(assembling() || state == State::over || calls.all());
}

}  // namespace shoal::local
