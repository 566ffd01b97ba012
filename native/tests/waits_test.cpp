// What a process says that its threads wait for: blocked only while nothing of the program's can run or end by itself.
#include "engine/waits.h"

#include <chrono>
#include <optional>
#include <vector>

#include "check.h"
#include "engine/callers.h"

namespace {

using namespace shoal;
using engine::OpenOperations;
using engine::Waits;

// As it is once the threads that have never called are known, of which there are none.
WorkerWorld::Waiting known(Waits& waits, bool leaves = false) {
  if (const std::optional<std::uint32_t> ask = waits.look(leaves).ask) {
    waits.note_threads(*ask, 0);
  }
  return waits.look(leaves).waiting;
}

}  // namespace

TEST(a_thread_that_waits_is_blocked_but_not_while_a_handler_runs_in_the_middle_of_it) {
  engine::GateWatch gates;
  OpenOperations operations(gates);
  Waits waits(operations);
  const auto gradient = operations.open(nullptr, false);
  const engine::BlockedBy blocked(gradient->handle());
  const WorkerWorld::Waiting before = known(waits);
  CHECK(before.blocked);
  CHECK_EQ(before.patience, 2 * second);
  CHECK(before.handles == std::vector<std::uint64_t>{gradient->handle()});
  {
    const engine::Awake awake;
    CHECK(!known(waits).blocked);
    // What the handler calls in its turn blocks it, and it alone.
    engine::note_call();
    const auto checkpoint = operations.open(nullptr, false);
    {
      const engine::BlockedBy inner(checkpoint->handle());
      const WorkerWorld::Waiting inside = known(waits);
      CHECK(inside.blocked && inside.changes > before.changes);
      CHECK(inside.handles == std::vector<std::uint64_t>{checkpoint->handle()});
    }
    CHECK(!known(waits).blocked);
    operations.finish(checkpoint->handle(), {});
  }
  const WorkerWorld::Waiting after = known(waits);
  CHECK(after.blocked && after.changes > before.changes);
  CHECK(after.handles == before.handles);
}

TEST(a_look_for_signals_that_finds_none_is_no_change) {
  engine::GateWatch gates;
  OpenOperations operations(gates);
  Waits waits(operations);
  const auto gradient = operations.open(nullptr, false);
  const engine::BlockedBy blocked(gradient->handle());
  const WorkerWorld::Waiting before = known(waits);
  { const engine::Awake awake; }
  CHECK_EQ(waits.look(false).waiting.changes, before.changes);
}

TEST(while_there_are_threads_that_might_call_it_is_asked_again_whether_there_still_are) {
  engine::GateWatch gates;
  OpenOperations operations(gates);
  Waits waits(operations);
  const auto gradient = operations.open(nullptr, false);
  const engine::BlockedBy blocked(gradient->handle());
  const std::optional<std::uint32_t> first = waits.look(false).ask;
  CHECK(first.has_value());
  CHECK(!waits.look(false).ask);
  waits.note_threads(*first, 1);
  const Waits::Look with_a_stranger = waits.look(false);
  CHECK(with_a_stranger.waiting.blocked);
  CHECK_EQ(with_a_stranger.waiting.patience, 60 * second);
  CHECK(with_a_stranger.ask == first);
  CHECK(!waits.look(false).ask);
  waits.note_threads(*first, 0);
  const Waits::Look alone = waits.look(false);
  CHECK_EQ(alone.waiting.patience, 2 * second);
  CHECK_EQ(alone.waiting.changes, with_a_stranger.waiting.changes);
  CHECK(!alone.ask);
}

// A handler may have started a thread.
TEST(after_every_change_the_threads_that_might_call_are_counted_anew) {
  engine::GateWatch gates;
  OpenOperations operations(gates);
  Waits waits(operations);
  const auto gradient = operations.open(nullptr, false);
  const engine::BlockedBy blocked(gradient->handle());
  for (int change = 0; change < 4; ++change) {
    CHECK(known(waits).blocked);
    engine::note_call();
    const Waits::Look after = waits.look(false);
    CHECK(!after.waiting.blocked && after.ask.has_value());
    waits.note_threads(*after.ask, 0);
  }
}

TEST(what_a_rank_that_leaves_says_is_never_what_it_has_said_before) {
  engine::GateWatch gates;
  OpenOperations operations(gates);
  Waits waits(operations);
  const auto last = operations.open(nullptr, false);
  std::uint64_t before = 0;
  {
    const engine::BlockedBy blocked(last->handle());
    before = known(waits).changes;
  }
  for (std::uint64_t finished = 0; finished <= before; ++finished) {
    const WorkerWorld::Waiting leaving = waits.look(true).waiting;
    CHECK(leaving.blocked && leaving.changes > before);
    operations.finish(operations.open(nullptr, false)->handle(), {});
  }
}

TEST(what_ends_by_itself_before_long_blocks_nobody_also_where_another_thread_has_opened_it) {
  for (const bool leaves : {false, true}) {
    engine::GateWatch gates;
    OpenOperations operations(gates);
    Waits waits(operations);
    const auto next = operations.open(nullptr, false);
    const auto tried = operations.open(nullptr, true);
    const engine::BlockedBy blocked(next->handle());
    CHECK(!known(waits, leaves).blocked);
    operations.finish(tried->handle(), Status::error(Code::timeout, "tried"));
    CHECK(known(waits, leaves).blocked);
  }
}

RUN_TESTS()
