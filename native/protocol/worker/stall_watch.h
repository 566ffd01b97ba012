// When one operation moved last, and what has been done about it since. progress.h watches all operations.
//
//   first_late ≤ late_after
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "base/invariant.h"
#include "protocol/progress.h"

namespace shoal::worker {

class StallWatch {
 public:
  explicit StallWatch(Time now) : moved_at_(now) {}

  void move(Time now) { moved_at_ = now; }
  Time moved_at() const { return moved_at_; }

  // When it is looked at next. Progress has the same time in a table.
  Time check_at() const { return check_at_; }
  void set_check(Time when) { check_at_ = when; }

  // Looks at it. `moved`: when it moved last, for whatever reason. Late: servers are asked whom it waits for, and again
  // after twice as long. Overdue: they are asked for the last time.
  enum class Verdict { moves, is_late, is_overdue };
  Verdict look(Time moved, Time timeout, Time now) {
    if (moved != std::exchange(still_since_, moved)) {
      late_after_ = first_late;
    }
    if (moved + timeout <= now) {
      overdue_ = true;
      return Verdict::is_overdue;
    }
    if (!is_late(moved, now)) {
      return Verdict::moves;
    }
    late_after_ *= 2;
    return Verdict::is_late;
  }
  Time next_look(Time moved, Time timeout) const { return moved + std::min(timeout, late_after_); }
  // Whether it is late. When servers are asked about another operation, operations that are nearly late are asked about
  // too.
  bool is_late(Time moved, Time now) const { return moved + late_after_ <= now; }
  void look_early() { late_after_ *= 2; }

  // ask(): a question is on its way. has_moved(): whether it has moved by the time of the answers; then it is not
  // overdue.
  void ask(Time moved) { still_since_ = moved; }
  bool has_moved(Time moved) {
    overdue_ = overdue_ && moved == still_since_;
    return moved != still_since_;
  }
  bool is_overdue() const { return overdue_; }

  // Its home has been asked to fail it, with this status.
  void give_up(Status why) { why_given_up_ = std::move(why); }
  bool is_given_up() const { return !why_given_up_.ok(); }
  const Status& why_given_up() const { return why_given_up_; }

  // `stall`: since when it has not moved, and why, for messages.
  void explain(std::string stall) { stall_ = std::move(stall); }
  const std::string& stall() const { return stall_; }

  // A new epoch: all questions are void. Returns whether somebody had been asked for the last time.
  bool restart() {
    const bool asked = !std::exchange(why_given_up_, {}).ok();
    return std::exchange(overdue_, false) || asked;
  }

  void check_invariants() const { SHOAL_INVARIANT(first_late <= late_after_); }

 private:
  Time moved_at_;
  Time check_at_ = never;
  Time still_since_ = 0;  // the last move when that was looked at
  Time late_after_ = first_late;
  bool overdue_ = false;
  Status why_given_up_;
  std::string stall_;
};

}  // namespace shoal::worker
