// How a lost dedicated server comes to be used again: when it is tried, and which rank has reached which process there.
// docs/protocol/recovery.md, Reconnection.
//
// An attempt asks rank 0 first, to find out whether there is a server at all, and then all others. It succeeds when
// every rank has reached the same process as rank 0.
//
//   deadline() is a time exactly while the server is waited for or tried, so every attempt ends. An attempt has a
//   number. Other ranks have reached the server only after rank 0.
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

  // `probation`: a server that is lost within this time after it came back is tried less and less often.
  Reconnection(std::uint32_t ranks, Time probation) : ranks_(ranks), probation_(probation) {}

  // The server is lost, for the first time or again.
  void lose(Time now);
  bool is_lost() const { return state_ != State::back; }
  // When to try the server, or to give up the attempt.
  Time deadline() const { return deadline_; }
  bool is_tried() const { return state_ == State::tried; }
  // The attempt, from its begin until the next: counted from 1.
  std::uint32_t attempt() const { return attempt_; }

  void begin_attempt(Time now);
  void give_up(Time now);
  // The server is not tried any more.
  void rest();
  Answer hear(std::uint32_t rank, const wire::Reached& reached, bool unreachable, Time now);
  // A link of this rank to the server has broken. Links from before the attempt do not count.
  void hear_of_break(std::uint32_t rank, Time now);
  // After Answer::all: it is used again.
  void succeed(Time now);
  // True on the first call since the server was lost.
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
  std::set<std::uint32_t> reached_;  // ranks that have reached the server in this attempt
  wire::ServerId process_{};         // the process that rank 0 has reached
  bool ambiguity_said_ = false;
};

}  // namespace shoal
