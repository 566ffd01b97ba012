// How operations end on a server: they have been answered, have failed, or nobody needs to know of them any more; and
// which members are told of a failure. docs/protocol/lifecycle.md, "The end" and "Failure".
//
// If openings differ, the operation fails when all members have opened it, or at its alarm. If it has a rival
// (rivals.h), both fail at an alarm, and what fails one fails the other.
//
//   Every alarm belongs to a known operation whose home is here and whose openings differ, or that has a rival.
//   deadline() is the earliest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "protocol/machine.h"
#include "protocol/server/credit.h"
#include "protocol/server/links.h"
#include "protocol/server/operation.h"
#include "protocol/server/operation_table.h"
#include "protocol/server/receipts.h"
#include "protocol/server/summation.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class Endings {
 public:
  Endings(const Terms& terms, OperationTable& operations, Links& links, Credit& credit, Receipts& receipts,
          Summation& summation);

  // Openings differ: sets the alarm.
  void set_alarm(const Operation& operation, Time now);
  // The operation is over: no alarm.
  void clear_alarm(const Operation& operation);

  // After each of these the operation may be gone, and its rival. fail(): with `why` ok, another server says why.
  // meet(): the home, where it has just been opened for the first time, knows a rival; whether it has failed.
  bool meet(Operation& operation, Operation& rival, Time now);
  void fail(Operation& operation, Status why);
  void fail_for_conflict(Operation& operation);
  // All its results have been sent.
  void end_flow(Operation& operation);
  // Removes it if all members that have opened it have dropped it, and no other can open it and has to hear of its
  // failure. Tombstones of rivals go together.
  void remove_if_done(Operation& operation);
  void remove(Operation& operation);

  // A member that opens it after it has failed is told so.
  void tell_failure(Operation& operation, std::size_t index);
  // Members whose handles are done say nothing more of it, so they count as having dropped it.
  void drop_finished(Operation& operation);
  // The member's number is forgotten.
  void drop(Operation& operation, std::size_t index);

  void begin_epoch();
  void on_time(Time now);
  Time deadline() const { return alarms_.empty() ? never : alarms_.begin()->first; }

  void check_invariants() const;

 private:
  void fail_alone(Operation& operation, Status why);
  bool is_done(const Operation& operation, const Operation* rival) const;
  // Gives back the credit of what has come and is not answered.
  void release(Operation& operation);

  const Terms& terms_;
  OperationTable& operations_;
  Links& links_;
  Credit& credit_;
  Receipts& receipts_;
  Summation& summation_;
  std::set<std::pair<Time, std::uint64_t>> alarms_;      // when, and the serial
  std::unordered_map<std::uint64_t, Time> alarm_times_;  // by serial
};

}  // namespace shoal::server
