#include "drivers/common/follow_ups.h"

#include <algorithm>

namespace shoal {

void FollowUps::add_sent(Machine& machine, Token token) {
  if (token != 0) {
    sent_.emplace_back(&machine, token);
  }
}

void FollowUps::add_sent(Machine& machine, const std::vector<Token>& tokens) {
  for (Token token : tokens) {
    add_sent(machine, token);
  }
}

FollowUp FollowUps::take() {
  if (!sent_.empty()) {
    const auto [machine, token] = sent_.front();
    sent_.pop_front();
    return {FollowUp::Kind::sent, machine, 0, token};
  }
  const FollowUp next = later_.front();
  later_.pop_front();
  return next;
}

void FollowUps::forget(const Machine& machine) {
  std::erase_if(sent_, [&](const auto& next) { return next.first == &machine; });
  std::erase_if(later_, [&](const FollowUp& next) { return next.machine == &machine; });
}

std::size_t FollowUps::count(FollowUp::Kind kind) const {
  const auto is_it = [kind](const FollowUp& next) { return next.kind == kind; };
  return kind == FollowUp::Kind::sent ? sent_.size()
                                      : static_cast<std::size_t>(std::count_if(later_.begin(), later_.end(), is_it));
}

}  // namespace shoal
