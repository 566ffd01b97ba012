#include "engine/waits.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "engine/callers.h"

namespace shoal::engine {

namespace {

// How long nothing may have changed here before it is believed that nothing can be called: where all threads are known
// that might, and where there are such as never have.
constexpr Time known_patience = 2 * second;
constexpr Time stranger_patience = 60 * second;

// What a rank that leaves says in the place of its threads' changes: more than they have ever come to.
constexpr std::uint64_t changes_of_leaving = std::uint64_t{1} << 63U;

// Of the question which threads there are: another number after every change, and never 0.
std::uint32_t number_of(std::uint64_t changes) {
  return static_cast<std::uint32_t>(changes % std::numeric_limits<std::uint32_t>::max()) + 1;
}

}  // namespace

Waits::Look Waits::look(bool leaves) {
  Look look;
  WorkerWorld::Waiting& waiting = look.waiting;
  Callers callers = look_at_callers();
  const OpenOperations::Counts counts = operations_.counts();
  waiting.changes = 1 + (leaves ? changes_of_leaving : callers.changes) + counts.finished;
  waiting.patience = known_patience;
  if (counts.passing > 0) {
    return look;
  }
  if (leaves) {
    waiting.handles = operations_.handles(false);
    waiting.blocked = !waiting.handles.empty();
    return look;
  }
  const bool are_open = std::all_of(callers.handles.begin(), callers.handles.end(),
                                    [this](std::uint64_t handle) { return operations_.find(handle) != nullptr; });
  if (!callers.any || !callers.blocked || !are_open) {
    return look;
  }
  waiting.handles = std::move(callers.handles);
  const std::vector<std::uint64_t> told = operations_.handles(true);
  waiting.handles.insert(waiting.handles.end(), told.begin(), told.end());
  const std::uint32_t now = number_of(waiting.changes);
  const std::lock_guard lock(mutex_);
  waiting.blocked = known_at_ == now;
  if (waiting.blocked) {
    waiting.patience = strangers_ > 0 ? stranger_patience : known_patience;
  }
  if (asked_at_ != now && (!waiting.blocked || strangers_ > 0)) {
    asked_at_ = now;
    look.ask = now;
  }
  return look;
}

void Waits::note_threads(std::uint32_t attempt, std::size_t strangers) {
  const std::lock_guard lock(mutex_);
  known_at_ = attempt;
  asked_at_ = asked_at_ == attempt ? 0 : asked_at_;
  strangers_ = strangers;
}

}  // namespace shoal::engine
