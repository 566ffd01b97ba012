// Ranks that have joined: what a server tells them, what a worker makes of it, and under which numbers they call.
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "protocol/call_registry.h"
#include "protocol/collectives.h"
#include "protocol/joining.h"
#include "protocol/keys.h"
#include "protocol/worker/worker.h"
#include "served_job.h"
#include "worlds.h"

namespace {

using namespace shoal;
using tests::opening_of;
using wire::Type;

wire::Opening sum_of(const char* name) {
  wire::Opening opening = opening_of(Collective::all_reduce, name, 64);
  opening.op = Operator::sum;
  return opening;
}

struct Served : tests::ServedJob {
  Status join(std::uint32_t rank, std::uint8_t flags = 0) {
    return frame(rank, {.type = Type::join, .flags = flags, .epoch = epoch},
                 wire::encode_join(world_group_id(config.size())));
  }
  // All that was sent to the rank has been written, or its link is gone.
  void write(std::uint32_t rank) {
    for (const Token token : std::exchange(world.tokens[rank], {})) {
      if (token != 0) {
        server.on_sent(token);
        server.check_invariants();
      }
    }
  }
  std::ptrdiff_t told(std::uint32_t rank) {
    const std::vector<wire::Header>& to = world.sent[rank];
    return std::count_if(to.begin(), to.end(), [](const wire::Header& header) { return header.type == Type::called; });
  }
};

}  // namespace

TEST(a_joined_rank_is_told_once_of_each_call_that_it_has_not_made) {
  Served job;
  CHECK(job.open(0, 1, sum_of("before"), 0).ok());
  CHECK(job.open(2, 1, sum_of("its own"), 0).ok());
  CHECK(job.join(2).ok());
  CHECK_EQ(job.told(2), 1);
  wire::Opening called;
  CHECK(wire::decode_called(job.world.last, called).ok());
  CHECK_EQ(called.name, "before");
  CHECK(job.open(1, 1, sum_of("before"), 0).ok());
  CHECK(job.open(1, 2, sum_of("its own"), 0).ok());
  CHECK_EQ(job.told(2), 1);
  CHECK(job.open(1, 3, sum_of("after"), 0).ok());
  CHECK(job.open(0, 2, sum_of("after"), 0).ok());
  CHECK_EQ(job.told(2), 2);
  CHECK_EQ(job.told(0) + job.told(1), 0);
}

TEST(a_joined_rank_is_told_of_what_has_failed_and_not_of_the_operation_in_which_ranks_wait_for_it) {
  Served job;
  wire::Opening failed = sum_of("failed");
  failed.failed = true;
  failed.text = "the array is not where it should be";
  CHECK(job.open(0, 1, failed, 0).ok());
  CHECK(job.open(0, 2, opening_of(Collective::all_gather, join_name, 16), 0).ok());
  CHECK(job.join(1).ok());
  CHECK_EQ(job.told(1), 1);
  wire::Opening called;
  CHECK(wire::decode_called(job.world.last, called).ok());
  CHECK(called.failed && called.text.find(failed.text) != std::string::npos);
  // As the members hear it.
  CHECK(called.code == Code::failed_on_rank);
  CHECK_EQ(called.rank, 0);
  CHECK(called.text.find("failed on rank 0") != std::string::npos);
}

TEST(who_has_joined_no_more_is_told_nothing_and_says_it_again_in_a_new_epoch) {
  Served job;
  CHECK(job.join(1).ok());
  CHECK(job.join(1).code == Code::protocol);
  CHECK(job.join(1, wire::flag_over).ok());
  CHECK(job.join(1, wire::flag_over).code == Code::protocol);
  CHECK(job.open(0, 1, sum_of("x"), 0).ok());
  CHECK_EQ(job.told(1), 0);
  CHECK(job.join(1).ok());
  CHECK_EQ(job.told(1), 1);
  job.write(1);
  for (const std::uint32_t rank : {0, 1}) {
    job.begin_epoch(rank);
    job.end_reopening(rank);
  }
  CHECK(job.open(0, 1, sum_of("x"), 0).ok());
  CHECK_EQ(job.told(1), 1);
  CHECK(job.join(1).ok());
  CHECK_EQ(job.told(1), 2);
}

// Else a worker that reads nothing could have a server keep as much as it likes.
TEST(who_joins_again_is_told_nothing_before_what_it_was_told_earlier_is_written) {
  Served job;
  const auto rejoin = [&job] { return job.join(2, wire::flag_over).ok() && job.join(2).ok(); };
  CHECK(job.open(0, 1, sum_of("x"), 0).ok());
  CHECK(job.open(0, 2, sum_of("y"), 0).ok());
  CHECK(job.join(2).ok());
  CHECK_EQ(job.told(2), 2);
  for (int i = 0; i < 10; ++i) {
    CHECK(rejoin());
  }
  CHECK(job.open(0, 3, sum_of("z"), 0).ok());
  CHECK_EQ(job.told(2), 2);
  job.write(2);
  CHECK_EQ(job.told(2), 5);
  CHECK(rejoin());
  CHECK(job.join(2, wire::flag_over).ok());
  job.write(2);
  CHECK_EQ(job.told(2), 5);
  // What it hears as it is called waits for nothing, and what is called after that neither.
  CHECK(job.join(2).ok());
  CHECK_EQ(job.told(2), 8);
  CHECK(job.open(1, 1, sum_of("w"), 0).ok());
  CHECK_EQ(job.told(2), 9);
}

TEST(in_a_new_epoch_a_joined_rank_is_told_of_what_has_failed_and_not_of_what_others_have_the_result_of) {
  Served job;
  job.begin_epoch(0);
  job.begin_epoch(1);
  job.end_reopening(1);
  CHECK(job.join(1).ok());
  wire::Opening ended = sum_of("well");
  ended.finished = true;
  CHECK(job.open(0, 1, ended, 0).ok());
  CHECK_EQ(job.told(1), 0);
  ended = sum_of("failed");
  ended.finished = ended.failed = true;
  ended.code = Code::timeout;
  ended.text = std::string("nobody called it");
  CHECK(job.open(0, 2, ended, 0).ok());
  CHECK_EQ(job.told(1), 1);
}

TEST(a_join_in_a_group_that_is_not_the_ranks_is_refused) {
  Served job;
  const Hash128 others = group_id({0, 1}, "", 0);
  const wire::GroupMembers members{others, {0, 1}, false};
  CHECK(job.frame(2, {.type = Type::join}, wire::encode_join(others)).code == Code::protocol);
  CHECK(job.frame(0, {.type = Type::group}, wire::encode(members)).ok());
  CHECK(job.frame(2, {.type = Type::join}, wire::encode_join(others)).code == Code::protocol);
  CHECK(job.frame(0, {.type = Type::join}, Bytes(15)).code == Code::protocol);
}

namespace {

struct World final : IdleWorkerWorld {
  void send(LinkId, const wire::Header& header, Bytes, std::span<const std::byte>, Token) override {
    sent.push_back(header);
  }
  void finish(std::uint64_t handle, Status status) override { finished.emplace_back(handle, std::move(status)); }
  void called(std::uint32_t group, const wire::Opening& opening) override { heard.emplace_back(group, opening); }

  std::vector<wire::Header> sent;
  std::vector<std::pair<std::uint64_t, Status>> finished;
  std::vector<std::pair<std::uint32_t, wire::Opening>> heard;
};

struct Job {
  Job() { worker.attach_server(1, 0); }

  Status called(const char* name, std::uint32_t occurrence) {
    wire::Opening opening = sum_of(name);
    opening.group = world_group_id(2);
    opening.occurrence = occurrence;
    opening.key = operation_key(opening.group, opening.name, occurrence);
    return frame(worker, 1, {.type = Type::called}, wire::encode_called(opening));
  }
  void submit(std::uint64_t handle, const char* name, std::optional<std::uint32_t> told) {
    Submission call;
    if (told) {
      wire::Opening opening = sum_of(name);
      opening.occurrence = *told;
      std::uint64_t bytes = 0;
      call = call_of_joined(opening, 0, second, bytes);
      CHECK_EQ(bytes, 64U);
    } else {
      call.collective = Collective::all_reduce;
      call.op = Operator::sum;
      call.dtype = DType::uint8;
      call.shape = {64};
      call.name = std::string(name);
      call.timeout = second;
    }
    call.handle = handle;
    call.input = call.output = array.data();
    call.input_bytes = call.output_bytes = array.size();
    worker.submit(std::move(call));
  }
  std::ptrdiff_t sent(Type type) const {
    return std::count_if(world.sent.begin(), world.sent.end(), [type](const auto& one) { return one.type == type; });
  }

  const JobConfig config{{"a", "b"}, {"s"}, {-1}, {1}, 4096, 8192, 0, 1024, 1, 0};
  Bytes array = Bytes(64);
  World world;
  BufferPool pool{0};
  Worker worker{config, 0, world, pool};
};

}  // namespace

TEST(a_worker_hands_up_what_others_have_called_while_it_has_joined) {
  Job job;
  CHECK(job.called("x", 0).ok());
  CHECK(job.world.heard.empty());
  job.worker.join(0, 0);
  CHECK_EQ(job.sent(Type::join), 1);
  CHECK(job.called("x", 0).ok());
  CHECK_EQ(job.world.heard.size(), 1U);
  CHECK_EQ(job.world.heard[0].second.name, "x");
  job.submit(1, "own", std::nullopt);
  CHECK(job.called("own", 0).ok());
  CHECK_EQ(job.world.heard.size(), 1U);
  job.worker.end_join(0);
  CHECK_EQ(job.sent(Type::join), 2);
  CHECK(job.called("y", 0).ok());
  CHECK_EQ(job.world.heard.size(), 1U);
}

TEST(a_call_with_another_key_or_with_credit_is_refused) {
  Job job;
  wire::Opening opening = sum_of("x");
  CHECK(frame(job.worker, 1, {.type = Type::called}, wire::encode_called(opening)).code == Code::protocol);
  opening.splits = {1};
  CHECK(frame(job.worker, 1, {.type = Type::called}, wire::encode(opening)).code == Code::protocol);
  CHECK(frame(job.worker, 1, {.type = Type::called, .credit = 1}, {}).code == Code::protocol);
}

TEST(a_call_that_was_made_is_not_made_again) {
  Job job;
  job.worker.join(0, 0);
  job.submit(1, "x", 0);
  job.submit(2, "x", 0);
  CHECK_EQ(job.sent(Type::open), 1);
  CHECK_EQ(job.world.finished.size(), 1U);
  CHECK_EQ(job.world.finished[0].first, 2U);
  CHECK(job.world.finished[0].second.code == Code::cancelled);
}

TEST(calls_that_are_told_out_of_order_keep_their_numbers_and_later_ones_take_the_rest) {
  JobConfig config;
  config.hosts = {"a", "b"};
  CallRegistry calls(config, 1);
  const Hash128 group = world_group_id(2);
  const auto told = [&](std::uint32_t occurrence) {
    Submission call;
    call.name = std::string("x");
    call.occurrence = occurrence;
    const bool is_new = calls.note_told(call, group);
    calls.check_invariants();
    return is_new;
  };
  const auto own = [&] {
    Submission call;
    call.name = std::string("x");
    wire::Opening opening;
    calls.name_call(opening, group, call);
    calls.check_invariants();
    return opening.occurrence;
  };
  CHECK(told(2) && !told(2));
  CHECK(calls.has_called({group, 2, "x"}) && !calls.has_called({group, 1, "x"}));
  CHECK_EQ(own(), 0U);
  CHECK_EQ(own(), 1U);
  CHECK_EQ(own(), 3U);
  CHECK(told(5) && told(4));
  CHECK_EQ(own(), 6U);
  CHECK(!told(0) && !told(5));
}

TEST(a_joined_rank_gives_zeros_to_all_reduces_goes_on_with_barriers_and_fails_the_rest) {
  std::uint64_t bytes = 0;
  wire::Opening opening = sum_of("x");
  opening.divisor = 3;
  const Submission sum = call_of_joined(opening, 4, second, bytes);
  CHECK(sum.told && sum.failure.empty() && sum.group == 4 && sum.op == Operator::sum);
  CHECK_EQ(bytes, 64U);
  CHECK_EQ(sum.divisor, 3);
  opening = opening_of(Collective::barrier, unnamed, 0);
  const Submission barrier = call_of_joined(opening, 0, second, bytes);
  CHECK(barrier.collective == Collective::barrier && barrier.name.empty() && barrier.failure.empty());
  for (const Collective other : {Collective::reduce_scatter, Collective::broadcast, Collective::all_gather}) {
    const Submission refused = call_of_joined(opening_of(other, "y", 8), 0, second, bytes);
    CHECK(refused.failure.find("it has joined") != std::string::npos);
    CHECK(refused.failure.find(traits_of(other).name) != std::string::npos);
    CHECK_EQ(bytes, 0U);
  }
}

RUN_TESTS()
