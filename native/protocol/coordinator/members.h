// Who is in the job, and the control links of their workers.
//
//   Each known link belongs to the member that has it, and the other way round. A member has one in each network over
//   which lanes are spread (protocol/twin_links.h), and what it says counts once. A member that is there has neither
//   left nor been lost. Once nobody is there, all members with a link have been told that the job has ended.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocol/machine.h"
#include "protocol/twin_links.h"

namespace shoal {

class Members {
 public:
  Members(std::uint32_t ranks, CoordinatorWorld& world) : world_(world), members_(ranks) {}

  void attach(LinkId link, std::uint32_t rank);
  std::uint32_t rank_of(LinkId link) const { return ranks_.at(link); }
  // A frame has come whole. False: another link of the member's has brought it before.
  bool take(LinkId link) { return members_[rank_of(link)].links.take(link); }
  // The link has broken. Returns whether the member has another.
  bool detach(LinkId link);

  void leave(std::uint32_t rank) { members_[rank].left = true; }
  // False: it was lost before.
  bool lose(std::uint32_t rank);
  bool has_left(std::uint32_t rank) const { return members_[rank].left; }
  bool is_lost(std::uint32_t rank) const { return members_[rank].lost; }
  bool is_there(std::uint32_t rank) const { return !members_[rank].left && !members_[rank].lost; }
  bool all_are_there() const;

  void tell(std::uint32_t rank, wire::Type type, const wire::Bytes& bytes, std::uint32_t epoch = 0);
  void tell_all(wire::Type type, const wire::Bytes& bytes, std::uint32_t epoch = 0);

  // Tells everybody, once, when nobody is there any more.
  void end_if_all_gone();
  bool has_ended() const { return ended_; }

  void check_invariants() const;

 private:
  struct Member {
    TwinLinks links;
    bool left = false;
    bool lost = false;
  };

  bool all_are_gone() const;

  CoordinatorWorld& world_;
  std::vector<Member> members_;  // by rank
  std::unordered_map<LinkId, std::uint32_t> ranks_;
  bool ended_ = false;
};

}  // namespace shoal
