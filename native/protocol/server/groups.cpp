#include "protocol/server/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/invariant.h"
#include "protocol/keys.h"

namespace shoal::server {

namespace {

// With its place in a table.
std::size_t bytes_of(std::size_t ranks) { return 160 + sizeof(std::uint32_t) * ranks; }

Senders senders_of(const wire::GroupMembers& members) { return members.of_nodes ? Senders::nodes : Senders::ranks; }

bool has_a_rank_twice(std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
}

}  // namespace

std::optional<std::size_t> Group::index_of(std::uint32_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found - ranks.begin());
}

Groups::Groups(std::uint32_t ranks) : ranks_(ranks) {
  auto all = std::make_unique<Group>();
  all->ranks.resize(ranks);
  std::iota(all->ranks.begin(), all->ranks.end(), 0U);
  groups_.emplace(world_group_id(ranks), std::move(all));
}

const Group* Groups::find(const Hash128& id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

Status Groups::check(const wire::GroupMembers& members) const {
  const auto exists = [this](std::uint32_t rank) { return rank < ranks_; };
  if (members.ranks.empty() || !std::all_of(members.ranks.begin(), members.ranks.end(), exists)) {
    return refused("GROUP of ranks that do not exist");
  }
  if (has_a_rank_twice(members.ranks)) {
    return refused("GROUP with a rank twice");
  }
  const Group* known = find(members.id);
  const bool is_as_known = known == nullptr || (known->ranks == members.ranks && known->senders == senders_of(members));
  return is_as_known ? Status{} : refused("GROUP with other members than it had");
}

void Groups::add(wire::GroupMembers members) {
  auto made = std::make_unique<Group>();
  made->senders = senders_of(members);
  made->ranks = std::move(members.ranks);
  bytes_ += bytes_of(made->ranks.size());
  groups_.emplace(members.id, std::move(made));
}

void Groups::check_invariants() const {
  std::size_t bytes = 0;
  for (const auto& [id, group] : groups_) {
    bytes += bytes_of(group->ranks.size());
    SHOAL_INVARIANT(!group->ranks.empty() && group->ranks.size() <= ranks_);
  }
  SHOAL_INVARIANT(bytes == bytes_ + bytes_of(ranks_));
}

}  // namespace shoal::server
