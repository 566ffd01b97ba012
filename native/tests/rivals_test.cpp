// Nodes that call different kinds under one key at the server's machine: leaders open the one for all ranks of their
// nodes, each rank of the others the other for itself.
#include <string>

#include "protocol/sharding.h"
#include "served_job.h"

namespace {

using namespace shoal;
using tests::opening_of;
using wire::Type;

// Two nodes of two ranks, and their leaders' group.
struct Job : tests::ServedJob {
  explicit Job(std::vector<std::uint32_t> leaders = {0, 2}) : ServedJob(make()) {
    server.attach_worker(3, 3);
    for (const std::uint32_t leader : leaders) {
      CHECK(announce(leader, leaders, leaders_id).ok());
    }
  }

  static JobConfig make() {
    JobConfig config{{"a", "a", "b", "b"}, {"s"}, {-1}, {1}, 4096, 8192, 1024, 1024};
    config.leaders = {0, 0, 2, 2};
    CHECK_EQ(problem_with(config), "");
    return config;
  }

  Status announce(std::uint32_t rank, const std::vector<std::uint32_t>& ranks, const Hash128& id) {
    return frame(rank, {.type = Type::group}, wire::encode(wire::GroupMembers{id, ranks, true}));
  }
  // By a leader for its node, or by a rank for itself.
  Status opens(std::uint32_t rank, wire::Opening opening, bool for_node, std::uint64_t number = 1) {
    opening.group = for_node ? leaders_id : world_group_id(4);
    opening.key = operation_key(world_group_id(4), opening.name, 0);
    return frame(rank, {.type = Type::open, .operation = number}, wire::encode(opening));
  }
  Status drops(std::uint32_t rank, std::uint64_t number = 1) {
    return frame(rank, {.type = Type::drop, .operation = number}, {});
  }
  // The last thing that any rank was told. Empty if that is not of this type.
  std::string failure_of(std::uint32_t rank) {
    wire::Failure failure;
    const bool is_told = !world.sent[rank].empty() && world.sent[rank].back().type == Type::fail;
    return is_told && wire::decode(world.last, failure).ok() ? failure.status.message : "";
  }

  const Hash128 leaders_id = group_id({0, 2}, "", 1);
};

wire::Opening sum() {
  wire::Opening opening = opening_of(Collective::all_reduce, "x", 8);
  opening.op = Operator::sum;
  return opening;
}

wire::Opening failed() {
  wire::Opening opening = opening_of(Collective::none, "x", 0);
  opening.dtype = DType::none;
  opening.shape = {};
  opening.failed = true;
  opening.text = "no such array";
  return opening;
}

}  // namespace

TEST(nodes_that_call_different_kinds_hear_it_and_the_tombstones_of_both_are_forgotten) {
  Job job;
  job.server.on_time(second);
  CHECK(job.opens(0, sum(), true).ok());
  CHECK(job.opens(2, opening_of(Collective::broadcast, "x", 8), false).ok());
  job.server.on_time(second + second / 10);
  CHECK(job.opens(3, opening_of(Collective::broadcast, "x", 8), false).ok());
  job.server.check_invariants();
  for (const std::uint32_t rank : {0U, 2U, 3U}) {
    CHECK(!job.was_told(rank, Type::fail));
  }
  CHECK(job.server.deadline() <= second + second * 3 / 10);
  job.server.on_time(second + second * 3 / 10);
  job.server.check_invariants();
  for (const std::uint32_t rank : {0U, 2U, 3U}) {
    CHECK(job.was_told(rank, Type::fail));
  }
  CHECK_EQ(job.failure_of(0),
           "'x': ranks disagree on the operation: ranks 0 (a), 1 (a) called allreduce sum uint8[8]; ranks 2 (b), 3 (b) "
           "called broadcast uint8[8] from member 0. Every rank must call it with the same arguments");
  CHECK_EQ(job.server.operations(), 2U);
  CHECK(job.drops(0).ok());
  CHECK(job.drops(2).ok());
  CHECK_EQ(job.server.operations(), 2U);
  CHECK(job.drops(3).ok());
  CHECK_EQ(job.server.operations(), 0U);
  job.server.check_invariants();
}

TEST(who_has_not_called_yet_is_named_and_hears_of_it_when_it_calls_either_kind) {
  for (const bool for_node : {false, true}) {
    Job job;
    CHECK(job.opens(3, opening_of(Collective::barrier, "x", 0), false).ok());
    CHECK(job.opens(0, sum(), true).ok());
    job.server.on_time(second);
    CHECK(job.was_told(0, Type::fail) && job.was_told(3, Type::fail));
    CHECK(job.drops(0).ok());
    CHECK(job.drops(3).ok());
    CHECK_EQ(job.server.operations(), 2U);
    CHECK(job.opens(2, for_node ? sum() : opening_of(Collective::barrier, "x", 0), for_node).ok());
    const std::string text = job.failure_of(2);
    CHECK(text.find("rank 2 (b) had not called it yet") != std::string::npos);
    CHECK(job.drops(2).ok());
    CHECK_EQ(job.server.operations(), 0U);
    job.server.check_invariants();
  }
}

TEST(what_fails_one_kind_fails_the_other_whichever_was_first) {
  for (const bool failed_first : {false, true}) {
    Job job;
    if (failed_first) {
      CHECK(job.opens(1, failed(), false).ok());
      CHECK(job.opens(2, sum(), true).ok());
    } else {
      CHECK(job.opens(2, sum(), true).ok());
      CHECK(job.opens(1, failed(), false).ok());
    }
    CHECK(job.was_told(1, Type::fail) && job.was_told(2, Type::fail));
    CHECK_EQ(job.server.deadline(), never);
    job.server.check_invariants();
  }
}

TEST(who_asks_to_fail_one_kind_fails_the_other) {
  Job job;
  CHECK(job.opens(2, sum(), true).ok());
  CHECK(job.opens(0, opening_of(Collective::barrier, "x", 0), false).ok());
  const Bytes why = wire::encode(wire::Failure{Status::error(Code::timeout, "too late")});
  CHECK(job.frame(2, {.type = Type::fail, .operation = 1}, why).ok());
  CHECK_EQ(job.failure_of(2), "too late");
  CHECK(job.was_told(0, Type::fail));
  CHECK_EQ(job.server.deadline(), never);
}

TEST(a_rank_that_leaves_ends_both_kinds_at_once) {
  Job job;
  CHECK(job.opens(0, sum(), true).ok());
  CHECK(job.opens(2, opening_of(Collective::barrier, "x", 0), false).ok());
  CHECK(job.drops(0).ok());
  CHECK(job.drops(2).ok());
  for (const std::uint32_t rank : {0U, 1U, 2U, 3U}) {
    CHECK(job.frame(rank, {.type = Type::leave}, {}).ok());
    job.server.check_invariants();
  }
  CHECK_EQ(job.server.operations(), 0U);
}

TEST(lost_links_leave_nothing_of_either_kind) {
  Job job;
  CHECK(job.opens(0, sum(), true).ok());
  CHECK(job.opens(2, opening_of(Collective::barrier, "x", 0), false).ok());
  for (const std::uint32_t rank : {0U, 1U, 2U, 3U}) {
    job.server.on_lost(rank, Status::error(Code::peer_lost, "gone"));
    job.server.check_invariants();
  }
  CHECK_EQ(job.server.operations(), 0U);
}

TEST(leaders_have_the_keys_of_their_own_ranks_alone) {
  Job job;
  const Hash128 some = group_id({0, 1}, "", 1);
  CHECK(job.frame(0, {.type = Type::group}, wire::encode(wire::GroupMembers{some, {0, 1}, false})).ok());
  CHECK(job.opens(0, sum(), true).ok());
  wire::Opening other = opening_of(Collective::barrier, "x", 0);
  other.group = some;
  other.key = operation_key(world_group_id(4), "x", 0);
  const Status status = job.frame(0, {.type = Type::open, .operation = 2}, wire::encode(other));
  CHECK(status.message.find("in another group than the key says") != std::string::npos);
}

// Two leaders scatter what has a row for each of them, whatever the shape of the program's array.
TEST(a_leader_gets_its_row_of_what_leaders_scatter) {
  Job job;
  wire::Opening scatter = opening_of(Collective::reduce_scatter, "x", 24);
  scatter.op = Operator::sum;
  scatter.shape = {5, 4};
  for (const std::uint32_t rank : {0U, 2U}) {
    wire::Opening opening = scatter;
    opening.group = job.leaders_id;
    opening.key = operation_key(world_group_id(4), "x", 0);
    opening.inline_bytes = 24;
    Bytes payload = wire::encode(opening);
    payload.resize(payload.size() + 24);
    CHECK(job.frame(rank, {.type = Type::open, .operation = 1}, payload).ok());
  }
  CHECK_EQ(job.world.sums.size(), 1U);
  job.server.on_summed(job.world.sums.back());
  CHECK(job.world.sent[0].back().type == Type::result && job.world.sent[2].back().type == Type::result);
  CHECK_EQ(job.world.sent[0].back().offset, 0U);
  CHECK_EQ(job.world.sent[2].back().offset, 12U);
  CHECK_EQ(job.world.sent[2].back().length, 12U);
}

RUN_TESTS()
