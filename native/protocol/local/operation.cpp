#include "protocol/local/operation.h"

#include "base/invariant.h"

namespace shoal::local {

std::optional<wire::Opening> Operation::any_opening() const {
  if (called && !opening.failed) {
    return opening;
  }
  const std::optional<wire::Opening> other = calls.any_other();
  return called && (!other || other->failed) ? std::optional(opening) : other;
}

bool Operation::contributes(std::uint32_t own) const {
  const bool roots_alone = traits_of(opening.collective).contributors == CollectiveTraits::Contributors::root;
  return !roots_alone || group->here.at(opening.root) == own;
}

void Operation::check_invariants() const {
  calls.check_invariants();
  averaging.check_invariants();
  SHOAL_INVARIANT(called || state == State::gathering || state == State::over);
  SHOAL_INVARIANT(called == (group != nullptr) || !called);
  SHOAL_INVARIANT(gathers() || state == State::over || calls.all());
}

}  // namespace shoal::local
