// How a dedicated server that was lost comes to be used again: when it is tried, and who has reached what there.
// docs/protocol/recovery.md, Reconnection.
//
// An attempt asks rank 0 first, which alone finds out whether there is a server at all, and then all others; it
// succeeds when every rank has reached the process that rank 0 has.
//
//   deadline() is a time exactly while the server is waited for or tried, so no attempt stays without an end; an
//   attempt has a number; others have reached the server only after rank 0 has.
#pragma once

#include <cstdint>
#include <set>

#include "protocol/machine.h"
#include "wire/epoch.h"

namespace shoal {

class Reconnection {
 public:
  // What follows from a rank's answer.
  enum class Answer {
    stale,      // of an attempt that is over
    in_vain,    // it cannot be reached
    ambiguous,  // this rank has reached another process than rank 0; that is also in vain
    first,      // rank 0 has reached it: the others are to be asked
    one_more,
    all,
  };

  // `probation`: one that is lost so soon after it came back is tried less and less often.
  Reconnection(std::uint32_t ranks, Time probation) : ranks_(ranks), probation_(probation) {}

  // It is lost, for the first time or again.
  void lose(Time now);
  bool is_lost() const { return state_ != State::back; }
  // When it is to be tried, or the attempt to be given up.
  Time deadline() const { return deadline_; }
  bool is_tried() const { return state_ == State::tried; }
  // The attempt, from its begin until the next: counted from 1.
  std::uint32_t attempt() const { return attempt_; }

  void begin_attempt(Time now);
  void give_up(Time now);
  // It is not tried any more.
  void rest();
  Answer hear(std::uint32_t rank, const wire::Reached& reached, bool unreachable, Time now);
  // A link of this rank to it has broken. What it had before the attempt does not count.
  void hear_of_break(std::uint32_t rank, Time now);
  // After Answer::all: it is used again.
  void succeed(Time now);
  // The first time that it is called since it was lost.
  bool is_first_ambiguity();

  void check_invariants() const;

 private:
  enum class State { waited_for, tried, back, resting };

  const std::uint32_t ranks_;
  const Time probation_;
  State state_ = State::back;
  Time deadline_ = never;
  Time pause_ = 0;    // after the next attempt in vain
  Time penalty_ = 0;  // after the last loss; 0: there was none
  Time back_since_ = 0;
  std::uint32_t attempt_ = 0;
  std::set<std::uint32_t> reached_;  // the ranks, in this attempt
  wire::ServerId process_{};         // that rank 0 has reached
  bool ambiguity_said_ = false;
};

}  // namespace shoal
