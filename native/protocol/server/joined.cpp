#include "protocol/server/joined.h"

#include <algorithm>
#include <utility>

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
  if (over) {
    std::erase(told_[group.ranks[member]].waiting, &group);
  }
  return is_here == over ? Status{} : refused(over ? "JOIN that is over, and never was" : "JOIN a second time");
}

bool Joined::begin_telling(const Group& group, std::uint32_t rank) {
  Told& told = told_[rank];
  if (told.on_the_way > 0) {
    told.waiting.push_back(&group);
  }
  return told.on_the_way == 0;
}

bool Joined::waits(const Group& group, std::uint32_t rank) const {
  const std::vector<const Group*>& waiting = told_[rank].waiting;
  return std::find(waiting.begin(), waiting.end(), &group) != waiting.end();
}

std::vector<const Group*> Joined::note_written(std::uint32_t rank) {
  Told& told = told_[rank];
  return --told.on_the_way == 0 ? std::exchange(told.waiting, {}) : std::vector<const Group*>();
}

void Joined::begin_epoch() {
  members_.clear();
  for (Told& told : told_) {
    told.waiting.clear();
  }
}

void Joined::check_invariants() const {
  for (const auto& [group, members] : members_) {
    SHOAL_INVARIANT(!members.empty() && members.back() < group->ranks.size());
    SHOAL_INVARIANT(std::is_sorted(members.begin(), members.end()));
    SHOAL_INVARIANT(std::adjacent_find(members.begin(), members.end()) == members.end());
  }
  for (std::uint32_t rank = 0; rank < told_.size(); ++rank) {
    SHOAL_INVARIANT(told_[rank].waiting.empty() || told_[rank].on_the_way > 0);
    for (const Group* const group : told_[rank].waiting) {
      const std::vector<std::size_t>* const members = members_of(*group);
      SHOAL_INVARIANT(members != nullptr);
      SHOAL_INVARIANT(std::binary_search(members->begin(), members->end(), group->index_of(rank).value()));
    }
  }
}

}  // namespace shoal::server
