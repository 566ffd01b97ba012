// The groups that were made on this rank. None is ever forgotten, so their memory is limited.
//
//   group 0 has all ranks
//   bytes ≥ the sum over all groups; a group has no members exactly if there was no room for it
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "protocol/worker/environment.h"

namespace shoal::worker {

struct Group {
  Hash128 id;
  Hash128 keys;  // whose id its operations' keys are made of: its own, or that of the group that leaders speak for
  std::vector<std::uint32_t> ranks;
  Senders senders = Senders::ranks;
  std::vector<std::uint32_t> needed;  // ranks whose loss ends it: the members, and the ranks that they speak for
  std::size_t own = 0;                // this rank's index
  bool too_many = false;              // there was no room for it; its members are not known

  std::size_t size() const { return ranks.size(); }
  std::optional<std::size_t> index_of(std::uint32_t rank) const;
  bool needs(std::uint32_t rank) const;
  // The member at this distance after this rank, around the group.
  std::uint32_t member_after(std::size_t distance) const { return ranks[(own + distance) % ranks.size()]; }
};

class Groups {
 public:
  // With the group of all ranks.
  explicit Groups(const Environment& environment);

  // Returns its number.
  std::uint32_t make(std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> needed, const std::string& name);
  // The leaders of the group with number `of`, whose other ranks they speak for. Its operations have that group's keys:
  // so what the ranks of some nodes open for themselves, and what leaders open for all of theirs, meet at one home.
  // It has a name of its own kind, except that of the group of all ranks. Otherwise its id could meet another group's:
  // two groups of all ranks, in different orders, may have the same leaders in the same order, and so may a group of
  // only these ranks; and ranks may make them in any order.
  std::uint32_t make_of_nodes(std::vector<std::uint32_t> leaders, std::uint32_t of, const std::string& name);
  // Null: there is no such group.
  const Group* find(std::uint32_t number) const;
  const Group* find(const Hash128& id) const;
  const Group& at(std::uint32_t number) const { return *groups_.at(number); }

  void check_invariants() const;

 private:
  Group& add(std::vector<std::uint32_t> ranks, Senders senders, std::vector<std::uint32_t> needed,
             const std::string& name);
  std::uint32_t last() const { return static_cast<std::uint32_t>(groups_.size() - 1); }

  const Environment& environment_;
  std::vector<std::unique_ptr<Group>> groups_;             // by number
  std::unordered_map<Hash128, std::uint64_t> times_made_;  // by id of the first with these ranks and this name
  std::size_t bytes_ = 0;
};

}  // namespace shoal::worker
