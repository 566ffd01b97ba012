// What a process says that its threads wait for: blocked only while nothing of the program's can run or end by itself.
#include "engine/waits.h"

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/callers.h"

namespace {

using namespace shoal;
using engine::OpenOperations;
using engine::Waits;

// As it is once the threads that have never called are known, of which there are none.
NodeWorld::Waiting known(Waits& waits, bool leaves = false) {
  if (const std::optional<std::uint32_t> ask = waits.look(leaves).ask) {
    waits.note_threads(*ask, 0);
  }
  return waits.look(leaves).waiting;
}

}  // namespace

TEST(a_thread_that_waits_is_blocked_but_not_while_a_handler_runs_in_the_middle_of_it) {
  OpenOperations operations;
  Waits waits(operations);
  const auto gradient = operations.open(nullptr, false);
  const engine::BlockedBy blocked(gradient->handle());
  const NodeWorld::Waiting before = known(waits);
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
      const NodeWorld::Waiting inside = known(waits);
      CHECK(inside.blocked && inside.changes > before.changes);
      CHECK(inside.handles == std::vector<std::uint64_t>{checkpoint->handle()});
    }
    CHECK(!known(waits).blocked);
    operations.finish(checkpoint->handle(), {});
  }
  const NodeWorld::Waiting after = known(waits);
  CHECK(after.blocked && after.changes > before.changes);
  CHECK(after.handles == before.handles);
}

TEST(a_handler_that_called_nothing_counts_as_a_change_since_it_may_have_started_a_thread) {
  OpenOperations operations;
  Waits waits(operations);
  const auto gradient = operations.open(nullptr, false);
  const engine::BlockedBy blocked(gradient->handle());
  const NodeWorld::Waiting before = known(waits);
  {
    const engine::Awake awake;
    std::thread([] {}).join();
  }
  CHECK(known(waits).changes > before.changes);
}

TEST(what_ends_by_itself_before_long_blocks_nobody_also_where_another_thread_has_opened_it) {
  for (const bool leaves : {false, true}) {
    OpenOperations operations;
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
