// Which operations of a local group do not move, and whom they wait for. Says so in a warning after 10 s, then at
// doubling intervals, and in the error of an operation that times out.
//
//   deadline ≤ the time at which the next open operation is late or times out
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "protocol/local/call_table.h"
#include "protocol/local/execution.h"
#include "protocol/local/operation.h"
#include "protocol/machine.h"

namespace shoal::local {

class ProgressWatch {
 public:
  ProgressWatch(const Members& members, std::uint32_t own, bool has_other_nodes)
      : members_(members), own_(own), has_other_nodes_(has_other_nodes) {}

  // The leader has been told of this operation, or has announced that it fails: its word is waited for.
  void watch_for_verdict(const Operation& operation) { check_by(moved(operation) + longest_wait(operation)); }
  void begin_call(const Submission& submission, Time now) { check_by(now + std::min(submission.timeout, first_late)); }
  // A step of a large operation was done. Operations behind it wait for their turn, so that counts as their progress.
  void note_flowed(Time now) { flowed_ = now; }
  Time deadline() const { return next_check_; }

  struct Findings {
    std::vector<Operation*> timed_out;
    std::optional<std::string> warning;
  };
  Findings look(const CallTable& calls, const Execution& execution, Time now);
  // The error of an operation that has timed out.
  Status timed_out(const Operation& operation, const Execution& execution, Time now) const;

 private:
  void check_by(Time when) { next_check_ = std::min(next_check_, when); }
  std::string warning_of(const std::vector<const Operation*>& late, const Execution& execution, Time now) const;
  std::string stall_text(const Operation& operation, const Execution& execution, Time now) const;
  Time moved(const Operation& operation) const;
  Time longest_wait(const Operation& operation) const;

  const Members& members_;
  const std::uint32_t own_;
  const bool has_other_nodes_;
  Time flowed_ = 0;
  Time next_check_ = never;
};

}  // namespace shoal::local
