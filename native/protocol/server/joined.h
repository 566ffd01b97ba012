// Which members of a group have joined: they are told what the others call there (docs/protocol/lifecycle.md, "Joined
// ranks"). No more members than the groups have, so their memory is bounded with that of the groups.
//
// Also what a member is told is bounded. Whoever joins hears of all that is open, and of each later call once. Whoever
// joins again while frames of before are still on their way hears of what is open when those are written.
//
//   a group is here exactly while a member of it has joined; no member is here twice
//   a rank waits in a group → it has joined there, and frames are on their way to it
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "protocol/server/groups.h"

namespace shoal::server {

class Joined {
 public:
  explicit Joined(std::uint32_t ranks) : told_(ranks) {}

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

  // Whether the rank, which has just joined, is told of what is open now. If not, it waits.
  bool begin_telling(const Group& group, std::uint32_t rank);
  bool waits(const Group& group, std::uint32_t rank) const;
  // A frame is on its way to the rank. It has been written, or the link is gone: the groups in which the rank has
  // waited for that, which it is told of now.
  void note_sent(std::uint32_t rank) { ++told_[rank].on_the_way; }
  std::vector<const Group*> note_written(std::uint32_t rank);

  // Workers say it again.
  void begin_epoch();

  void check_invariants() const;

 private:
  struct Told {
    std::size_t on_the_way = 0;         // frames
    std::vector<const Group*> waiting;  // in the order in which it has joined
  };

  std::unordered_map<const Group*, std::vector<std::size_t>> members_;  // indices in the group, ascending
  std::vector<Told> told_;                                              // by rank
};

}  // namespace shoal::server
