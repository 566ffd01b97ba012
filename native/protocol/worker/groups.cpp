#include "protocol/worker/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/invariant.h"
#include "protocol/keys.h"

namespace shoal::worker {

namespace {

// What a group takes beside its members: its place in a table.
constexpr std::size_t group_overhead = 160;

std::size_t bytes_of(std::size_t ranks, std::size_t needed) {
  return group_overhead + sizeof(std::uint32_t) * (ranks + needed);
}

}  // namespace

std::optional<std::size_t> Group::index_of(std::uint32_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found - ranks.begin());
}

bool Group::needs(std::uint32_t rank) const { return std::find(needed.begin(), needed.end(), rank) != needed.end(); }

Groups::Groups(const Environment& environment) : environment_(environment) {
  std::vector<std::uint32_t> all(environment.config().size());
  std::iota(all.begin(), all.end(), 0U);
  std::vector<std::uint32_t> needed = all;
  make(std::move(all), std::move(needed), "");
}

std::uint32_t Groups::make(std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> needed,
                           const std::string& name) {
  add(std::move(ranks), Senders::ranks, std::move(needed), name);
  return last();
}

Group& Groups::add(std::vector<std::uint32_t> ranks, Senders senders, std::vector<std::uint32_t> needed,
                   const std::string& name) {
  auto group = std::make_unique<Group>();
  // Group 0 has the id that every server knows.
  const bool has_all = groups_.empty();
  const std::uint64_t made = has_all ? 0 : ++times_made_[group_id(ranks, name, 0)];
  group->id = group->keys = group_id(ranks, name, made);
  bytes_ += bytes_of(ranks.size(), needed.size());
  group->too_many = bytes_ > environment_.config().tables.groups && !has_all;
  if (!group->too_many) {
    group->ranks = std::move(ranks);
    group->senders = senders;
    group->needed = std::move(needed);
    group->own = group->index_of(environment_.rank()).value_or(0);
  }
  groups_.push_back(std::move(group));
  return *groups_.back();
}

std::uint32_t Groups::make_of_nodes(std::vector<std::uint32_t> leaders, std::uint32_t of, const std::string& name) {
  std::vector<std::uint32_t> needed = at(of).ranks;
  std::string own_name = name;
  if (groups_.size() > 1) {
    const Hash128 order = group_id(needed, "", 0);
    own_name.append(reinterpret_cast<const char*>(order.bytes.data()), order.bytes.size());
  }
  add(std::move(leaders), Senders::nodes, std::move(needed), own_name).keys = at(of).id;
  return last();
}

const Group* Groups::find(std::uint32_t number) const {
  return number < groups_.size() ? groups_[number].get() : nullptr;
}

const Group* Groups::find(const Hash128& id) const {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&id](const auto& group) { return group->id == id; });
  return found == groups_.end() ? nullptr : found->get();
}

void Groups::check_invariants() const {
  SHOAL_INVARIANT(at(0).size() == environment_.config().size());
  std::size_t known = 0;
  for (const auto& group : groups_) {
    SHOAL_INVARIANT(group->too_many == group->ranks.empty());
    SHOAL_INVARIANT(group->too_many || group->own < group->size());
    known += bytes_of(group->ranks.size(), group->needed.size());
  }
  SHOAL_INVARIANT(known <= bytes_);
}

}  // namespace shoal::worker
