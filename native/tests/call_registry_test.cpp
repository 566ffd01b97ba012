#include "protocol/call_registry.h"

#include "check.h"
#include "protocol/keys.h"
#include "worlds.h"

namespace {

using namespace shoal;

JobConfig job() {
  JobConfig config;
  config.hosts = {"a", "b"};
  return config;
}

Submission called(const std::string& name) {
  Submission submission;
  submission.name = name;
  return submission;
}

TEST(calls_of_one_name_in_one_group_are_counted_and_each_has_its_own_key) {
  const JobConfig config = job();
  CallRegistry calls(config, 1);
  const Hash128 group = world_group_id(2);
  const Hash128 other = group_id({0, 1}, "other", 1);
  wire::Opening first;
  wire::Opening second;
  wire::Opening elsewhere;
  calls.name_call(first, group, called("x"));
  calls.name_call(second, group, called("x"));
  calls.name_call(elsewhere, other, called("x"));
  CHECK_EQ(first.occurrence, 0U);
  CHECK_EQ(second.occurrence, 1U);
  CHECK_EQ(elsewhere.occurrence, 0U);
  CHECK(first.key == operation_key(group, "x", 0) && second.key == operation_key(group, "x", 1));
  CHECK(calls.has_called({group, 1, "x"}) && !calls.has_called({group, 2, "x"}) && !calls.has_called({group, 0, "y"}));
  calls.check_invariants();
}

TEST(a_call_without_a_name_has_the_name_that_no_other_may_have) {
  const JobConfig config = job();
  CallRegistry calls(config, 0);
  const Hash128 group = world_group_id(2);
  wire::Opening opening;
  calls.name_call(opening, group, called(""));
  CHECK_EQ(opening.name, unnamed);
  CHECK(calls.problem_with_name(group, "").ok());
  const Status problem = calls.problem_with_name(group, unnamed);
  CHECK(problem.code == Code::failed_on_rank && problem.rank == 0);
  CHECK_EQ(problem.message, "a name has 1 to 1024 bytes and is not '#'");
}

TEST(a_call_that_was_numbered_by_its_caller_takes_no_number_of_the_name) {
  const JobConfig config = job();
  CallRegistry calls(config, 0);
  const Hash128 group = world_group_id(2);
  Submission numbered = called("x");
  numbered.occurrence = 7;
  wire::Opening opening;
  calls.name_call(opening, group, numbered);
  CHECK_EQ(opening.occurrence, 7U);
  CHECK(!calls.has_called({group, 0, "x"}));
}

TEST(beyond_the_memory_for_names_known_ones_work_and_new_ones_do_not) {
  JobConfig config = job();
  config.tables.names = 2 * CallRegistry::name_bytes;
  CallRegistry calls(config, 1);
  const Hash128 group = world_group_id(2);
  for (const char* name : {"x", "y"}) {
    CHECK(calls.problem_with_name(group, name).ok());
    wire::Opening opening;
    calls.name_call(opening, group, called(name));
    calls.check_invariants();
  }
  CHECK(calls.problem_with_name(group, "y").ok());
  const Status problem = calls.problem_with_name(group, "z");
  CHECK(problem.code == Code::limit && problem.rank == 1);
  CHECK_EQ(problem.message,
           "the names of operations take all the memory that they may on rank 1 (b), 128 bytes (names_bytes): 2 names "
           "were used; use the same names in every step");
}

TEST(beyond_the_memory_for_open_calls_one_fails_and_when_some_end_there_is_room_again) {
  JobConfig config = job();
  config.tables.open = 1000;
  CallRegistry calls(config, 0);
  calls.add(600);
  CHECK(calls.problem_with(called("x"), 1).ok());
  calls.add(600);
  const Status problem = calls.problem_with(called("x"), 2);
  CHECK(problem.code == Code::limit && problem.rank == 0);
  CHECK_EQ(problem.message,
           "the operations that are open take all the memory that they may on rank 0 (a), 1000 bytes (open_bytes): 2 "
           "are open; wait for some of them");
  calls.remove(600);
  CHECK(calls.problem_with(called("x"), 1).ok());
  // Those that fail before they begin count beside the others.
  calls.add_failed(1000);
  CHECK(!calls.has_room_for_failed() && calls.problem_with(called("x"), 1).ok());
  calls.remove_failed(1000);
  CHECK(calls.has_room_for_failed());
  calls.remove(600);
  calls.check_invariants();
}

TEST(a_call_that_has_failed_already_fails_with_that_and_not_for_what_else_is_wrong) {
  const JobConfig config = job();
  const CallRegistry calls(config, 1);
  Submission submission = called("x");
  submission.shape.assign(33, 1);
  CHECK_EQ(calls.problem_with(submission, 0).message, "arrays have at most 32 dimensions");
  submission.failure = "no such tensor";
  CHECK_EQ(calls.problem_with(submission, 0).message, "no such tensor");
  CHECK_EQ(calls.problem_with(submission, 0).rank, 1);
  submission.failure_code = Code::timeout;
  submission.failure_rank = -1;
  CHECK(calls.problem_with(submission, 0).code == Code::timeout && calls.problem_with(submission, 0).rank == -1);
}

}  // namespace

RUN_TESTS()
