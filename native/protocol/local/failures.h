// How an operation of a local group fails before it has begun: its ranks disagree, it has failed on one of them, one
// has left, or its time is out. What fails later, fails as the network or the end of the group says (local_group.h).
//
// Without other nodes every rank sees for itself that ranks disagree, or that one has left. When the time is out, the
// leader decides, since others may be about to begin with the operation:
//   1. It announces that the failure is pending.
//   2. It looks who has called the operation.
//   3. If all have, it says that it goes on, otherwise that it has failed.
// Before a rank begins with an operation, it reads the leader's mailbox once more. All ranks see these steps in one
// order (word.h): either the leader sees the last call, or the rank that would begin sees the announcement.
//
// With other nodes the leader decides on every failure, and tells both the ranks of its node and the other nodes.
// What stands against an operation is *disputed* until the leader knows what the operation is, so that it can name
// it to them.
//
//   a failure is pending → this is the leader, there are no other nodes, and it has been announced
//   an operation that stays on this machine fails here → it is assembling, and no rank has begun with it
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "protocol/local/call_table.h"
#include "protocol/local/members.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"
#include "protocol/local/progress_watch.h"
#include "protocol/local/world.h"

namespace shoal::local {

class Failures {
 public:
  // All of these must outlive it. `own`: this rank's place.
  Failures(const Members& members, std::uint32_t own, bool has_other_nodes, CallTable& calls, ProgressWatch& watch,
           Outbox& outbox, World& world)
      : members_(members),
        own_(own),
        has_other_nodes_(has_other_nodes),
        calls_(calls),
        watch_(watch),
        outbox_(outbox),
        world_(world) {}

  // --- What stands against an operation ---

  // Every rank that knows as much sees this for itself.
  void fail(Operation& operation, const Status& why);
  // This rank has said in its call that the operation has failed here.
  void note_failed_call(Operation& operation);
  // The rank calls nothing any more: operations that it has not called fail.
  void note_left(std::uint32_t place);
  // A rank that has left has not called this one.
  void fail_without(Operation& operation, std::uint32_t place);
  // If it is disputed: the leader fails it everywhere, once it knows what it is.
  void settle_dispute(Operation& operation);

  // On the leader: that rank leaves. The other nodes hear of what has failed on it before it began, although nobody
  // here knows what it is. Whether there was anything.
  bool tell_alone(std::uint32_t place);

  // --- What cannot be waited for ---

  // Not all ranks have called it, and its time is out on this rank: the leader decides.
  void fail_late(Operation& operation, const Status& why);
  // The same on another rank, which says so.
  void read_overdue(const Record& record);
  // Whether the next pending failure can be decided: the others can read that it is pending.
  bool can_decide() const { return !pending_.empty() && outbox_.empty(); }
  // Decides it. What all have called goes on, and is returned; else null.
  Operation* decide_next();
  // Nothing is decided any more.
  void drop_pending() { pending_.clear(); }

  // --- Other nodes ---

  // On the leader: all ranks of the node have called it, and none of them begins.
  void fail_complete(Operation& operation, const Status& why);
  // The leader says that it has failed; `waiting`: who on the other nodes waits for it (fail_everywhere).
  void tell_worker(Operation& operation, ConstBytes waiting, const Status& why);
  // Whether the other nodes have yet to hear of what has failed here before it began. They hear it from the worker,
  // once this node's ranks have agreed on what it is: somebody who has called it too has to be there for that, and the
  // leader.
  bool any_untold() const;

  void check_invariants() const;

 private:
  void fail_everywhere(Operation& operation, const Status& why);
  void announce(Operation& operation, const Status& why);

  bool is_first() const { return own_ == 0; }

  const Members& members_;
  const std::uint32_t own_;
  const bool has_other_nodes_;
  CallTable& calls_;
  ProgressWatch& watch_;
  Outbox& outbox_;
  World& world_;
  std::deque<std::pair<Hash128, Status>> pending_;  // in the order of their announcements
};

}  // namespace shoal::local
