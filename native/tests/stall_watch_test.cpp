#include "protocol/worker/stall_watch.h"

#include "check.h"

namespace {

using namespace shoal;
using worker::StallWatch;
using Verdict = StallWatch::Verdict;

constexpr Time timeout = 100 * second;

TEST(servers_are_asked_after_10_seconds_then_after_twice_as_long_each_time) {
  StallWatch watch(0);
  CHECK(watch.look(0, timeout, 10 * second - 1) == Verdict::moves);
  CHECK(watch.look(0, timeout, 10 * second) == Verdict::is_late);
  CHECK_EQ(watch.next_look(0, timeout), 20 * second);
  CHECK(watch.look(0, timeout, 20 * second) == Verdict::is_late);
  CHECK_EQ(watch.next_look(0, timeout), 40 * second);
  watch.check_invariants();
}

TEST(who_moves_is_late_after_10_seconds_again) {
  StallWatch watch(0);
  CHECK(watch.look(0, timeout, 10 * second) == Verdict::is_late);
  CHECK(watch.look(15 * second, timeout, 20 * second) == Verdict::moves);
  CHECK_EQ(watch.next_look(15 * second, timeout), 25 * second);
}

TEST(at_its_timeout_it_is_overdue_unless_it_has_moved_when_the_answers_are_here) {
  StallWatch watch(0);
  CHECK(watch.look(0, timeout, timeout) == Verdict::is_overdue);
  watch.ask(0);
  CHECK(!watch.has_moved(0) && watch.is_overdue());
  CHECK(watch.has_moved(1) && !watch.is_overdue());
}

TEST(a_new_epoch_forgets_what_was_asked_and_says_whether_it_was_for_the_last_time) {
  StallWatch watch(0);
  CHECK(!watch.restart());
  CHECK(watch.look(0, timeout, timeout) == Verdict::is_overdue);
  watch.give_up(Status::error(Code::timeout, "'a' has not moved"));
  CHECK(watch.restart());
  CHECK(!watch.is_overdue() && !watch.is_given_up());
}

}  // namespace

RUN_TESTS()
