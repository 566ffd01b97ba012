// How operations end at the server's machine where ranks leave, links are lost and frames cross.
#include "protocol/sharding.h"
#include "served_job.h"

namespace {

using namespace shoal;
using tests::opening_of;
using wire::Type;
using Job = tests::ServedJob;

// One of two servers, which is not the home of "a". Rank 0 has had the result of "a" before the epoch; of this server's
// part, the others have none.
struct NotHome : Job {
  NotHome() : Job(two_servers()) {
    const Hash128 group = world_group_id(3);
    while (home_of(operation_key(group, name, 0), config) == 0) {
      name += "a";
    }
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      begin_epoch(rank);
    }
  }

  // `has_own`: it has this server's part of the result, and lacks the home's.
  void opens(std::uint32_t rank, bool has_own = false) {
    wire::Opening sum;
    sum.collective = Collective::all_reduce;
    sum.dtype = DType::uint8;
    sum.op = Operator::sum;
    sum.name = name;
    sum.bytes = 16384;
    sum.shape = {16384};
    sum.finished = rank == 0;
    if (rank > 0) {
      for (const Share& share : shares_of(sum.bytes, 1, config)) {
        if (share.server == (has_own ? 0U : 1U)) {
          sum.have = {share.shard};
        }
      }
    }
    CHECK(open(rank, 1, sum, 0).ok());
  }
  void leaves(std::uint32_t rank) {
    const Bytes why = wire::encode(wire::Failure{Status::error(Code::peer_left, "rank 0 has left", 0)});
    CHECK(frame(rank, {.type = Type::fail, .epoch = 1, .operation = 1}, why).ok());
    CHECK(frame(rank, {.type = Type::drop, .epoch = 1, .operation = 1}, {}).ok());
    CHECK(frame(rank, {.type = Type::leave, .epoch = 1}, {}).ok());
  }
  Status sends(std::uint32_t rank, std::uint64_t offset = 0) {
    wire::Header header{.type = Type::data, .dtype = DType::uint8, .epoch = 1, .operation = 1};
    header.offset = offset;
    header.length = 4096;
    return frame(rank, header, Bytes(4096));
  }

  static JobConfig two_servers() {
    JobConfig config{{"a", "b", "c"}, {"s", "t"}, {-1, -1}, {1, 1}, 4096, 8192, 1024, 1024, 1, 0, false, 0};
    CHECK_EQ(problem_with(config), "");
    return config;
  }

  std::string name = "a";
};

}  // namespace

TEST(who_has_lost_its_link_may_lack_what_all_others_have) {
  Job job;
  wire::Opening sum = opening_of(Collective::all_reduce, "a", 4096);
  sum.op = Operator::sum;
  sum.finished = true;
  for (std::uint32_t rank : {0, 1}) {
    job.begin_epoch(rank);
    CHECK(job.open(rank, 1, sum, 0).ok());
    job.end_reopening(rank);
  }
  job.server.on_lost(2, Status::error(Code::peer_lost, "connection timed out"));
  CHECK(!job.was_told(0, Type::have));
  // That nobody knows better in a minute means that the rank has left, and its goodbye was lost.
  job.server.on_time(61 * second);
  CHECK(job.was_told(0, Type::have));
  CHECK(job.was_told(1, Type::have));
  CHECK_EQ(job.server.operations(), 0U);
}

// Found by the simulated network: rank 0 had waited for a minute for those who may lack the result, and left a little
// before the minute was over after which a lost link counts as a goodbye. The others were never told that all had it.
TEST(who_leaves_with_a_result_that_nobody_can_lack_fails_nothing) {
  for (const bool may_lack : {false, true}) {
    Job job;
    wire::Opening sum = opening_of(Collective::all_reduce, "a", 4096);
    sum.op = Operator::sum;
    for (std::uint32_t rank : {0, 1}) {
      job.begin_epoch(rank);
      sum.finished = rank == 0;
      sum.have = rank == 0 ? std::vector<Range>{} : std::vector<Range>{{0, 4096}};
      CHECK(job.open(rank, 1, sum, 0).ok());
      job.end_reopening(rank);
    }
    if (!may_lack) {
      job.server.on_lost(2, Status::error(Code::peer_lost, "connection timed out"));
    }
    const Bytes why = wire::encode(wire::Failure{Status::error(Code::peer_left, "rank 0 has left", 0)});
    CHECK(job.frame(0, {.type = Type::fail, .epoch = 1, .operation = 1}, why).ok());
    CHECK(job.frame(0, {.type = Type::drop, .epoch = 1, .operation = 1}, {}).ok());
    CHECK(job.frame(0, {.type = Type::leave, .epoch = 1}, {}).ok());
    CHECK_EQ(job.was_told(1, Type::fail), may_lack);
    job.server.on_time(61 * second);
    CHECK_EQ(job.was_told(1, Type::have), !may_lack);
  }
}

TEST(who_leaves_after_it_has_sent_the_result_that_others_lack_fails_nothing) {
  for (const bool has_sent : {true, false}) {
    Job job;
    wire::Opening sum = opening_of(Collective::all_reduce, "a", 4096);
    sum.op = Operator::sum;
    for (std::uint32_t rank : {0, 1, 2}) {
      job.begin_epoch(rank);
      sum.finished = rank == 0;
      CHECK(job.open(rank, 1, sum, 0).ok());
    }
    if (has_sent) {
      CHECK(job.frame(0, {.type = Type::data, .dtype = DType::uint8, .epoch = 1, .operation = 1, .length = 4096},
                      Bytes(4096))
                .ok());
    }
    const Bytes why = wire::encode(wire::Failure{Status::error(Code::peer_left, "rank 0 has left", 0)});
    CHECK(job.frame(0, {.type = Type::fail, .epoch = 1, .operation = 1}, why).ok());
    CHECK(job.frame(0, {.type = Type::drop, .epoch = 1, .operation = 1}, {}).ok());
    for (std::uint32_t rank : {1, 2}) {
      CHECK_EQ(job.was_told(rank, Type::fail), !has_sent);
      CHECK_EQ(job.was_told(rank, Type::result), has_sent);
    }
  }
}

// Its home may have settled it long ago: all had what it gave.
TEST(who_lacks_what_a_rank_takes_with_it_hears_so_from_a_server_that_is_not_the_home) {
  NotHome job;
  job.opens(0);
  job.opens(1);
  job.leaves(0);
  CHECK(job.was_told(1, Type::fail));
  job.opens(2);
  CHECK(job.was_told(2, Type::fail));
  for (std::uint32_t rank : {1, 2}) {
    CHECK(job.frame(rank, {.type = Type::drop, .epoch = 1, .operation = 1}, {}).ok());
  }
  CHECK_EQ(job.server.operations(), 0U);
}

TEST(who_leaves_after_it_has_got_the_rest_of_the_result_elsewhere_fails_nothing) {
  NotHome job;
  job.opens(0);
  job.opens(1, true);
  job.opens(2);
  CHECK(job.frame(1, {.type = Type::drop, .flags = wire::flag_well, .epoch = 1, .operation = 1}, {}).ok());
  job.leaves(1);
  CHECK(!job.was_told(2, Type::fail));
  for (std::uint64_t offset = 0; offset < 8192; offset += 4096) {
    CHECK(job.sends(0, offset).ok());
  }
  CHECK(job.was_told(2, Type::result) && !job.was_told(2, Type::fail));
  CHECK_EQ(job.server.operations(), 0U);
}

TEST(who_opens_what_only_a_rank_that_has_left_has_hears_so_from_a_server_that_is_not_the_home) {
  NotHome job;
  CHECK(job.frame(0, {.type = Type::leave, .epoch = 1}, {}).ok());
  job.opens(1);
  CHECK(job.was_told(1, Type::fail));
}

TEST(who_waits_for_a_rank_whose_goodbye_was_lost_hears_so_in_a_minute) {
  NotHome job;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    job.opens(rank);
  }
  job.server.on_lost(0, Status::error(Code::peer_lost, "connection timed out"));
  CHECK(!job.was_told(1, Type::fail));
  job.server.on_time(61 * second);
  CHECK(job.was_told(1, Type::fail) && job.was_told(2, Type::fail));
}

TEST(data_that_was_on_its_way_when_its_operation_failed_is_no_error) {
  NotHome job;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    job.opens(rank);
  }
  CHECK(job.was_told(0, Type::admit));
  CHECK(job.frame(1, {.type = Type::drop, .epoch = 1, .operation = 1}, {}).ok());
  job.world.sent[0].clear();
  CHECK(job.sends(0).ok());
  CHECK_EQ(job.world.sent[0].back().credit, 4096U);
}

RUN_TESTS()
