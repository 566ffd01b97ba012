// Which members of a group have joined: they are told what the others call there (docs/protocol/lifecycle.md, "Joined
// ranks"). No more members than the groups have, so their memory is bounded with that of the groups.
//
//   a group is here exactly while a member of it has joined; no member is here twice
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "protocol/server/groups.h"

namespace shoal::server {

class Joined {
 public:
  // The member has joined, or (`over`) has joined no more. Refuses what it has said already.
  Status note(const Group& group, std::size_t member, bool over);
  // Null: nobody.
  const std::vector<std::size_t>* members_of(const Group& group) const {
    if (members_.empty()) {
      return nullptr;
    }
    const auto found = members_.find(&group);
    return found == members_.end() ? nullptr : &found->second;
  }
  // Workers say it again.
  void begin_epoch() { members_.clear(); }

  void check_invariants() const;

 private:
  std::unordered_map<const Group*, std::vector<std::size_t>> members_;  // indices in the group, ascending
};

}  // namespace shoal::server
