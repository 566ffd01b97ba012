// Who has joined in which group (protocol/joining.h): this rank, which is told what others call there and it has not;
// and others, which are rung when this rank calls something there, since they call it next.
//
// A rank that has joined says so in its mailbox. Whoever reads that rings it: what was called before, nobody may have
// rung it for. It is woken as if an operation were open.
//
//   no place and group is here twice
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "protocol/local/call_table.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/members.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"
#include "protocol/local/world.h"

namespace shoal::local {

class Joined {
 public:
  // All of these must outlive it. `own`: this rank's place.
  Joined(const GroupMemory& memory, const Members& members, std::uint32_t own, CallTable& calls, Outbox& outbox,
         World& world)
      : memory_(memory), members_(members), own_(own), calls_(calls), outbox_(outbox), world_(world) {}

  // This rank has joined in the group, or has joined there no more. `is_heard`: it may still say so.
  void begin(std::uint32_t group, Time now);
  void end(std::uint32_t group, bool is_heard);
  // What another rank says of a group.
  void note(std::uint32_t place, const Hash128& group, bool over);

  bool anybody() const { return !joined_.empty(); }
  // This rank has called something in the group.
  void ring(const Hash128& group);
  // Others have called it, and this rank has not.
  void tell(const Operation& operation, Time now);

  void check_invariants() const;

 private:
  using Place = std::pair<std::uint32_t, Hash128>;  // and a group's id

  bool has(const Place& place) const;

  const GroupMemory& memory_;
  const Members& members_;
  const std::uint32_t own_;
  CallTable& calls_;
  Outbox& outbox_;
  World& world_;
  std::vector<Place> joined_;
};

}  // namespace shoal::local
