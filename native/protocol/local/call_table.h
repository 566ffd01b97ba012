// The calls of a group's ranks, matched by operation: this rank's calls until the others can read them, the others'
// calls as they are read, and whether they agree.
//
//   open calls = open operations, and calls that are held;   eager ≥ the inline bytes of their openings
//   an operation stays until all ranks have called it or left
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/call_registry.h"
#include "protocol/gates.h"
#include "protocol/job.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/members.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"
#include "protocol/local/world.h"

namespace shoal::local {

class CallTable {
 public:
  using Operations = std::unordered_map<Hash128, std::unique_ptr<Operation>>;

  // All of these must outlive it. `own`: this rank's place. `has_other_nodes`: all-reduces go on to other nodes.
  CallTable(const GroupMemory& memory, const Members& members, std::uint32_t own, bool has_other_nodes, Outbox& outbox,
            World& world);

  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const std::optional<Internode>& internode);
  const Group& group(std::uint32_t number) const { return *groups_.at(number); }
  // The group with this id; null if this rank has not made it.
  const Group* group_of(const Hash128& id) const;

  // --- This rank's calls ---

  // Opens an operation, or ends it at once: with the reason why it cannot be, or with the failure that the others have
  // already.
  void call(Submission&& submission, Time now, bool was_held);
  // Holds a call that awaits its input (gates.h). False: it fails, and is to be called now.
  bool hold(Submission& submission, Time now);
  // To be called: the input of this call is there, or will never be and why. None: it is not held.
  std::optional<Submission> release(std::uint64_t handle, const std::string& problem);
  // Handles of calls whose input is too late.
  std::vector<std::uint64_t> take_late(Time now) { return gates_.take_late(now); }
  const Gates& gates() const { return gates_; }
  bool all_written() const { return unwritten_.empty(); }
  // Writes the next call to the others, with its contribution if it is small. Null: there is none, or no room.
  Operation* write_next(std::uint64_t round);
  // It is the worker's now.
  void close(Operation& operation);
  // It has ended here.
  void end(Operation& operation, const Status& status);
  // Nothing is written any more.
  void drop_unwritten() { unwritten_.clear(); }
  std::size_t open() const { return registry_.open(); }
  bool has_called(const wire::Call& call) const { return registry_.has_called(call); }

  // --- All calls ---

  // What another rank has called.
  Operation& hear(std::uint32_t place, const Record& record, Time now);
  // Why the operation fails, now that this rank and the other have called it; none: it does not. Throws
  // std::runtime_error for a contribution that is not what the call says.
  std::optional<Status> objection(Operation& operation, std::uint32_t place) const;

  Operation& at(const Hash128& key);  // made if there is none
  Operation* find(const Hash128& key) const;
  void erase(const Hash128& key);
  // Forgets an operation that is over here if nobody calls it any more.
  void forget_if_done(const Operation& operation);

  // The rank calls nothing any more.
  void note_left(std::uint32_t place) { left_[place] = true; }
  bool has_left(std::uint32_t place) const { return left_[place]; }
  // Operations of the group that others have called and this rank has not.
  std::vector<const Operation*> uncalled(const Hash128& group) const;
  // What waits in this group for others to join has moved.
  void move_join(const Hash128& group, Time now);
  // Operations that this rank has called and the other has not.
  std::vector<Operation*> lacking(std::uint32_t place) const;
  // Whether all who have not called it have left.
  bool nobody_else_calls(const Operation& operation) const;

  // Nobody else writes into the arrays of this rank's open operations any more.
  void detach_arrays();
  const Operations& all() const { return operations_; }
  // Open operations by handle, without their members. `handles`: which ones, in rising order.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const;

  // Whether operations of this kind are carried out here. If not, the worker carries them out.
  bool stays(Collective collective) const { return !has_other_nodes_ || traits_of(collective).goes_up(); }

  // Whether this rank sees for itself how operations end. With other nodes the leader says it to all.
  bool decides() const { return !has_other_nodes_ || own_ == 0; }

  void check_invariants() const;

 private:
  void finish_at_once(const Submission& submission, Status why);
  std::optional<Offsets> offsets_of(const Submission& submission) const;
  Status mismatch(const Operation& operation) const;

  const GroupMemory& memory_;
  const Members& members_;
  const std::uint32_t own_;
  const bool has_other_nodes_;
  const std::size_t inline_bytes_;  // contributions of at most so many bytes lie beside the opening
  Outbox& outbox_;
  World& world_;
  CallRegistry registry_;
  Gates gates_;
  std::map<std::uint32_t, std::unique_ptr<Group>> groups_;  // by number; never forgotten
  Operations operations_;
  std::vector<bool> left_;         // by place
  std::deque<Hash128> unwritten_;  // calls, in order
  std::size_t eager_ = 0;          // bytes beside openings of open operations
};

}  // namespace shoal::local
