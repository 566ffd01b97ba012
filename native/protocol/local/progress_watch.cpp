#include "protocol/local/progress_watch.h"

#include "protocol/agreement.h"

namespace shoal::local {

namespace {

// What a look at one open operation takes, at most, and how many times as long passes until the next: where very many
// are open, whose times come one after the other, looking at them is not all that is done.
constexpr Time look_takes = second / 1'000'000;
constexpr Time between_looks = 10;

}  // namespace

Time ProgressWatch::moved(const Operation& operation) const {
  const Time moved = operation.lateness.moved();
  return operation.state == Operation::State::flowing ? std::max(moved, flowed_) : moved;
}

// How long the leader's word is waited for: twice the time-out, since the network has its own, and some seconds to
// hear of it.
Time ProgressWatch::longest_wait(const Operation& operation) const {
  return 2 * operation.submission.timeout + 3 * others_first;
}

ProgressWatch::Findings ProgressWatch::look(const CallTable& calls, const Execution& execution, Time now) {
  Findings findings;
  std::vector<const Operation*> late;
  Time looks = 0;
  next_check_ = never;
  for (const auto& [key, operation] : calls.all()) {
    if (!operation->is_open()) {
      continue;
    }
    looks += look_takes;
    const Time since = moved(*operation);
    const bool others_end_it =
        operation->overdue || operation->fail_pending || (has_other_nodes_ && !operation->assembling());
    const Time timeout = others_end_it ? longest_wait(*operation) : operation->submission.timeout;
    if (since + timeout <= now) {
      findings.timed_out.push_back(operation.get());
      continue;
    }
    if (operation->lateness.is_late(since, now)) {
      late.push_back(operation.get());
    }
    check_by(since + std::min(timeout, operation->lateness.late_after()));
  }
  if (next_check_ != never) {
    next_check_ = std::max(next_check_, now + between_looks * looks);
  }
  if (!late.empty()) {
    findings.warning = warning_of(late, execution, now);
  }
  return findings;
}

// Of the one that waits longest. What keeps it keeps the others, as a rule.
std::string ProgressWatch::warning_of(const std::vector<const Operation*>& late, const Execution& execution,
                                      Time now) const {
  const Operation& first = **std::min_element(late.begin(), late.end(), [this](const Operation* a, const Operation* b) {
    return std::pair(moved(*a), a->opening.name) < std::pair(moved(*b), b->opening.name);
  });
  const std::size_t others = late.size() - 1;
  return describe(first.opening) + " '" + first.opening.name + "' " + stall_text(first, execution, now) +
         (others == 0   ? ""
          : others == 1 ? "; another operation does not move either"
                        : "; " + std::to_string(others) + " other operations do not move either");
}

Status ProgressWatch::timed_out(const Operation& operation, const Execution& execution, Time now) const {
  return Status::error(Code::timeout,
                       "'" + operation.opening.name + "' " + stall_text(operation, execution, now) +
                           "; see what is late there (py-spy dump), or raise the timeout of this group, or "
                           "SHOAL_TIMEOUT",
                       static_cast<std::int32_t>(members_.rank_of(own_)));
}

std::string ProgressWatch::stall_text(const Operation& operation, const Execution& execution, Time now) const {
  const bool is_flowing = operation.state == Operation::State::flowing;
  std::vector<std::uint32_t> missing = operation.calls.missing();
  std::string why = " has not called it";
  if (operation.internode_state.hands_out() && own_ == 0) {
    why = " does not take its result";
    missing = execution.late_in_delivery();
  } else if (missing.empty() && operation.ready != 0 && !is_flowing) {
    why = " does not say whether it has memory for it";
    for (std::uint32_t place = 0; place < members_.size(); ++place) {
      if ((operation.ready >> place & 1) == 0) {
        missing.push_back(place);
      }
    }
  } else if (missing.empty() && has_other_nodes_ && (operation.internode_state.flowed() || !is_flowing)) {
    why = " averages it with the other nodes";
    missing = {0};
  } else if (missing.empty() && is_flowing) {
    why = " does not do its part";
    missing = execution.late_in_flow();
  } else if (missing.empty()) {
    why = ", which decides on the order, does not answer";
    missing = {0};
  }
  if (missing.size() > 1 && operation.assembling()) {
    why = " have not called it";
  }
  return "has not moved on " + members_.name_of(own_) + " for " + seconds_text(now - moved(operation)) + ": " +
         members_.names_of(missing) + why;
}

}  // namespace shoal::local
