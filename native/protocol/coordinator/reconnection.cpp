#include "protocol/coordinator/reconnection.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal {

namespace {

// How long after its loss, or after an attempt in vain, a server is tried again: at first, and at most.
constexpr Time first_pause = second;
constexpr Time longest_pause = 8 * second;

// One that is lost soon after it came back has to wait twice as long as the last time, at most so long.
constexpr Time longest_penalty = 600 * second;

// How long an attempt may take. Rank 0's worker and then the others may each need what a connection is given.
constexpr Time longest_attempt = 45 * second;

}  // namespace

void Reconnection::lose(Time now) {
  const bool again_soon = state_ == State::back && penalty_ != 0 && now - back_since_ < probation_;
  penalty_ = again_soon ? std::min(2 * penalty_, longest_penalty) : first_pause;
  pause_ = first_pause;
  state_ = State::waited_for;
  deadline_ = now + penalty_;
  ambiguity_said_ = false;
}

void Reconnection::begin_attempt(Time now) {
  ++attempt_;
  reached_.clear();
  state_ = State::tried;
  deadline_ = now + longest_attempt;
}

void Reconnection::give_up(Time now) {
  state_ = State::waited_for;
  deadline_ = now + pause_;
  pause_ = std::min(2 * pause_, longest_pause);
}

void Reconnection::rest() {
  state_ = State::resting;
  deadline_ = never;
}

Reconnection::Answer Reconnection::hear(std::uint32_t rank, const wire::Reached& reached, bool unreachable, Time now) {
  if (reached.attempt.number != attempt_ || state_ != State::tried) {
    return Answer::stale;
  }
  if (unreachable) {
    give_up(now);
    return Answer::in_vain;
  }
  if (rank == 0) {
    process_ = reached.process;
  } else if (reached.process != process_) {
    give_up(now);
    return Answer::ambiguous;
  }
  reached_.insert(rank);
  if (reached_.size() == ranks_) {
    return Answer::all;
  }
  return rank == 0 ? Answer::first : Answer::one_more;
}

void Reconnection::hear_of_break(std::uint32_t rank, Time now) {
  if (state_ == State::tried && reached_.count(rank) > 0) {
    give_up(now);
  }
}

void Reconnection::succeed(Time now) {
  state_ = State::back;
  deadline_ = never;
  back_since_ = now;
}

bool Reconnection::is_first_ambiguity() { return !std::exchange(ambiguity_said_, true); }

void Reconnection::check_invariants() const {
  const bool goes_on = state_ == State::waited_for || state_ == State::tried;
  SHOAL_INVARIANT(goes_on == (deadline_ != never));
  SHOAL_INVARIANT(state_ != State::tried || attempt_ > 0);
  SHOAL_INVARIANT(reached_.size() <= ranks_);
  SHOAL_INVARIANT(reached_.empty() || reached_.count(0) > 0);
  SHOAL_INVARIANT(pause_ <= longest_pause && penalty_ <= longest_penalty);
}

}  // namespace shoal
