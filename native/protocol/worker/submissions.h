// Turns calls of the application into operations. An invalid call, and a call in a group of this rank alone, end at
// once. A call that fails on this rank before it begins becomes an operation that is opened as failed, so that all
// members hear.
//
//   the registry's open calls = the records of the open operations
#pragma once

#include <memory>

#include "protocol/call_registry.h"
#include "protocol/worker/environment.h"
#include "protocol/worker/goodbye.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/lost_ranks.h"
#include "protocol/worker/operation_table.h"

namespace shoal::worker {

class Submissions {
 public:
  Submissions(const Environment& environment, const Groups& groups, const LostRanks& lost_ranks, const Goodbye& goodbye,
              OperationTable& operations);

  // The operation, to be planned and opened; null: its handle has ended, and nobody else hears of it.
  std::unique_ptr<Operation> take(Submission submission);
  // Its record counts against the limit while it is open.
  void count(Operation& operation);
  void discount(const Operation& operation);

  const CallRegistry& calls() const { return calls_; }
  void check_invariants() const;

 private:
  Status problem_with(const Submission& submission) const;
  void finish_alone(const Submission& submission) const;

  const Environment& environment_;
  const Groups& groups_;
  const LostRanks& lost_ranks_;
  const Goodbye& goodbye_;
  OperationTable& operations_;
  CallRegistry calls_;
};

}  // namespace shoal::worker
