#include "protocol/server/joined.h"

#include <algorithm>

#include "base/invariant.h"

namespace shoal::server {

Status Joined::note(const Group& group, std::size_t member, bool over) {
  std::vector<std::size_t>& members = members_[&group];
  const auto at = std::lower_bound(members.begin(), members.end(), member);
  const bool is_here = at != members.end() && *at == member;
  if (is_here == over) {
    over ? static_cast<void>(members.erase(at)) : static_cast<void>(members.insert(at, member));
  }
  if (members.empty()) {
    members_.erase(&group);
  }
  return is_here == over ? Status{} : refused(over ? "JOIN that is over, and never was" : "JOIN a second time");
}

void Joined::check_invariants() const {
  for (const auto& [group, members] : members_) {
    SHOAL_INVARIANT(!members.empty() && members.back() < group->ranks.size());
    SHOAL_INVARIANT(std::is_sorted(members.begin(), members.end()));
    SHOAL_INVARIANT(std::adjacent_find(members.begin(), members.end()) == members.end());
  }
}

}  // namespace shoal::server
