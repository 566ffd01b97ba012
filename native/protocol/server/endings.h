// How operations end on a server: they have been answered, have failed, or nobody needs to know of them any more; and
// who is told that they have failed. docs/protocol/lifecycle.md, "The end" and "Failure".
//
//   Who waits to fail (openings differ, and others are still to come) is known, is a home's, has openings that differ,
//   and has an alarm; deadline() is the first of these.
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
          Summation& flow);

  // Openings differ: the operation fails when all have opened it, or have had time to.
  void fail_soon(const Operation& operation, Time now);
  // It does not, after all: it is over.
  void fail_not(const Operation& operation);

  // The operation may be gone after each of these. fail(): `why` ok: others say why.
  void fail(Operation& operation, Status why);
  void fail_for_conflict(Operation& operation);
  // All its results have been sent.
  void end_flow(Operation& operation);
  // Removes it if all who have opened it have dropped it, and nobody else can who would have to hear that it failed.
  void remove_if_done(Operation& operation);
  void remove(Operation& operation);

  // Who opens it after it has failed hears so.
  void tell_failure(Operation& operation, std::size_t index);
  // Members whose handles were done before say nothing more of it: they have dropped it.
  void drop_finished(Operation& operation);
  // The member's number is forgotten.
  void drop(Operation& operation, std::size_t index);

  void begin_epoch();
  void on_time(Time now);
  Time deadline() const { return alarms_.empty() ? never : alarms_.begin()->first; }

  void check_invariants() const;

 private:
  // What has come and is not answered.
  void release(Operation& operation);

  const Terms& terms_;
  OperationTable& operations_;
  Links& links_;
  Credit& credit_;
  Receipts& receipts_;
  Summation& summation_;
  std::set<std::pair<Time, std::uint64_t>> alarms_;      // and the serial
  std::unordered_map<std::uint64_t, Time> alarm_times_;  // by serial
};

}  // namespace shoal::server
