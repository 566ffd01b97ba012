#include "protocol/local/internode_state.h"

#include "base/invariant.h"

namespace shoal::local {

void InternodeState::dispute(const Status& why) {
  if (!disputed_) {
    disputed_ = why;
  }
}

void InternodeState::check_invariants() const {
  constexpr std::size_t most = ~std::size_t{0} / 2;  // a count that fell below 0 is above it
  SHOAL_INVARIANT(parts_ < most && lent_parts_ < most);
  SHOAL_INVARIANT(lent_parts_ == 0 || lent_ != nullptr);
  SHOAL_INVARIANT(!done_told_ || (verdict_ && verdict_->ok()));
  SHOAL_INVARIANT(!disputed_ || !at_network_);
}

}  // namespace shoal::local
