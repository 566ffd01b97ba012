// Turns calls of the application into operations. An invalid call, and a call in a group of this rank alone, end at
// once. A call that fails on this rank before it begins becomes an operation that is opened as failed, so that all
// members hear. A call whose input is still on its way is held until that is there.
//
//   the registry's open calls = the records of the open operations, and of the calls that are held
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/call_registry.h"
#include "protocol/gates.h"
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

  // Holds a call that awaits its input. False: it fails, and is to be taken now.
  bool hold(Submission& submission);
  // To be taken: the input of this call is there, or will never be and why. None: it is not held.
  std::optional<Submission> release(std::uint64_t handle, const std::string& problem);
  // Handles of calls whose input is too late.
  std::vector<std::uint64_t> take_late() { return gates_.take_late(environment_.now()); }
  const Gates& gates() const { return gates_; }
  // The operation, to be planned and opened; null: its handle has ended, and nobody else hears of it. `was_held`: it
  // was called before, and may be older than this rank's wish to leave.
  std::unique_ptr<Operation> take(Submission submission, bool was_held);
  // Its record counts against the limit while it is open.
  void count(Operation& operation);
  void discount(const Operation& operation);

  const CallRegistry& calls() const { return calls_; }
  void check_invariants() const;

 private:
  Status problem_with(const Submission& submission, bool was_held) const;
  void finish_alone(const Submission& submission) const;

  const Environment& environment_;
  const Groups& groups_;
  const LostRanks& lost_ranks_;
  const Goodbye& goodbye_;
  OperationTable& operations_;
  CallRegistry calls_;
  Gates gates_;
};

}  // namespace shoal::worker
