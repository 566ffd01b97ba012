#include "protocol/worker/progress.h"

#include <algorithm>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::worker {

using wire::Type;

namespace {

constexpr Time patience = second;       // for the servers' answers
constexpr Time last_word = 2 * second;  // for the home's, once it has been asked to fail an operation

// Questions that are on their way at once; what is more is counted in the warning.
constexpr std::size_t most_questions = 256;

}  // namespace

Progress::Progress(const Environment& environment, const OperationTable& operations, const Links& links,
                   ServerFrames& frames)
    : environment_(environment),
      operations_(operations),
      links_(links),
      frames_(frames),
      last_results_(environment.config().servers()) {}

Time Progress::deadline() const { return std::min(checks_.empty() ? never : checks_.begin()->first, inquiry_.until); }

void Progress::watch(Operation& operation) {
  check_again(operation, environment_.now() + std::min(operation.submission().timeout, first_late));
}

void Progress::check_again(Operation& operation, Time when) {
  StallWatch& watch = operation.watch();
  if (watch.check_at() != never) {
    checks_.erase({watch.check_at(), operation.number()});
  }
  watch.set_check(when);
  if (when != never) {
    checks_.insert({when, operation.number()});
  }
}

// While it waits for its turn, the progress of operations before it counts.
Time Progress::last_move(const Operation& operation) const {
  Time moved = operation.watch().moved_at();
  for (const Part& part : operation.parts()) {
    // A member that only receives is not told that it is admitted.
    if ((part.is_admitted() || !operation.contributes()) && !part.is_done()) {
      moved = std::max(moved, last_results_[part.server()]);
    }
  }
  return moved;
}

// --- Checks ---

Operation* Progress::take_due() {
  if (checks_.empty() || checks_.begin()->first > environment_.now()) {
    return nullptr;
  }
  Operation* operation = operations_.find(checks_.begin()->second);
  check_again(*operation, never);
  return operation;
}

std::optional<Status> Progress::check(Operation& operation) {
  StallWatch& watch = operation.watch();
  if (watch.is_given_up()) {
    Status why = watch.why_given_up();
    why.message = std::string(name_of(operation.submission().collective)) + " " + why.message + "; its home " +
                  environment_.config().server_names[operation.home()] + " did not answer";
    return why;
  }
  const Time timeout = operation.submission().timeout;
  const Time moved = last_move(operation);
  const StallWatch::Verdict verdict = watch.look(moved, timeout, environment_.now());
  if (verdict != StallWatch::Verdict::moves) {
    ask_about(operation);
  }
  if (verdict != StallWatch::Verdict::is_overdue) {
    check_again(operation, watch.next_look(moved, timeout));
  }
  return std::nullopt;
}

void Progress::end_checks(bool asked_before) {
  if (!asked_before && asks()) {
    ask_about_the_rest();
  }
  if (asks() && (inquiry_.until <= environment_.now() || inquiry_.unanswered == 0)) {
    end_inquiry();
  }
}

// --- Questions ---

void Progress::ask_about(Operation& operation) {
  if (!inquiry_.operations.insert(operation.number()).second) {
    return;
  }
  operation.watch().ask(last_move(operation));
  if (inquiry_.until == never) {
    inquiry_.until = environment_.now() + patience;
  }
  const BlockTransfer& transfer = operation.transfer();
  const bool goes_between_workers = operation.ring() || (transfer.has_begun() && !transfer.goes_through_home());
  for (const Part& part : operation.parts()) {
    const bool asks = !part.is_done() && !goes_between_workers && links_.server(part.server());
    if (asks && inquiry_.answers.size() < most_questions) {
      inquiry_.answers.emplace(std::pair(operation.number(), part.server()), std::nullopt);
      ++inquiry_.unanswered;
      frames_.send(part.server(), {.type = Type::ask, .operation = operation.number()});
    }
  }
}

// Operations that would be asked about in a moment are asked about now, so that there is one warning for all of them.
void Progress::ask_about_the_rest() {
  const Time soon = environment_.now() + patience;
  const std::vector<std::uint64_t> numbers = operations_.open_where([&](const Operation& operation) {
    const StallWatch& watch = operation.watch();
    return !operation.failed_here() && !watch.is_given_up() && !watch.is_overdue() &&
           watch.is_late(last_move(operation), soon);
  });
  for (const std::uint64_t number : numbers) {
    Operation& operation = *operations_.find(number);
    operation.watch().look_early();
    ask_about(operation);
    check_again(operation, operation.watch().next_look(last_move(operation), operation.submission().timeout));
  }
}

Status Progress::receive_late(std::uint32_t server, const Frame& frame) {
  wire::Late late;
  if (Status status = wire::decode(frame.bytes(), late); !status.ok()) {
    return status;
  }
  for (const wire::Late::Member& member : late.members) {
    if (member.rank >= environment_.config().size()) {
      return refused("LATE with a rank that does not exist");
    }
  }
  const auto asked = inquiry_.answers.find({frame.header.operation, server});
  if (asked != inquiry_.answers.end() && !asked->second) {
    asked->second = std::move(late);
    --inquiry_.unanswered;
  }
  if (asks() && inquiry_.unanswered == 0) {
    end_inquiry();
  }
  return {};
}

void Progress::end_inquiry() {
  const Inquiry inquiry = std::exchange(inquiry_, {});
  const Time now = environment_.now();
  // Operations that wait for the same are reported together.
  std::vector<std::pair<std::string, std::vector<const Operation*>>> warnings;
  for (const std::uint64_t number : inquiry.operations) {
    Operation* operation = operations_.find(number);
    if (operation == nullptr || operation->failed_here() || operation->ends_later() ||
        operation->watch().is_given_up()) {
      continue;
    }
    StallWatch& watch = operation->watch();
    const Time moved = last_move(*operation);
    if (watch.has_moved(moved)) {
      check_again(*operation, now);
      continue;
    }
    const std::string reason = stall_reason(*operation, inquiry.answers, environment_.config());
    watch.explain("has not moved on " + environment_.own_name() + " for " + seconds_text(now - moved) + ": " + reason);
    if (watch.is_overdue()) {
      time_out(*operation);
      continue;
    }
    auto same =
        std::find_if(warnings.begin(), warnings.end(), [&reason](const auto& entry) { return entry.first == reason; });
    if (same == warnings.end()) {
      same = warnings.insert(warnings.end(), {reason, {}});
    }
    same->second.push_back(operation);
  }
  for (const auto& [reason, operations] : warnings) {
    environment_.world().warn(stall_text(operations));
  }
}

// --- Ends ---

void Progress::time_out(Operation& operation) {
  ask_home_to_fail(
      operation,
      Status::error(Code::timeout,
                    "'" + operation.name() + "' " + operation.watch().stall() +
                        "; see what is late there (py-spy dump), or raise the timeout of this group, or SHOAL_TIMEOUT",
                    environment_.own_rank()));
}

void Progress::ask_home_to_fail(Operation& operation, Status why) {
  frames_.send(operation.home(), {.type = Type::fail, .operation = operation.number()},
               wire::encode(wire::Failure{why}));
  operation.watch().give_up(std::move(why));
  check_again(operation, environment_.now() + last_word);
}

void Progress::restart(Operation& operation) {
  if (operation.watch().restart()) {
    check_again(operation, environment_.now());
  } else {
    operation.watch().move(environment_.now());
  }
}

void Progress::check_invariants() const {
  std::size_t watched = 0;
  operations_.visit_open([&](const Operation& operation) {
    const Time check_at = operation.watch().check_at();
    watched += check_at != never ? 1 : 0;
    SHOAL_INVARIANT(check_at == never || checks_.contains({check_at, operation.number()}));
  });
  SHOAL_INVARIANT(watched == checks_.size());
  std::size_t unanswered = 0;
  for (const auto& [asked, answer] : inquiry_.answers) {
    unanswered += answer ? 0 : 1;
  }
  SHOAL_INVARIANT(unanswered == inquiry_.unanswered);
  SHOAL_INVARIANT(asks() || inquiry_.answers.empty());
}

}  // namespace shoal::worker
