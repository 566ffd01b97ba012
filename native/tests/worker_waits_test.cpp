// What a worker says to the coordinator of those who use it, however much they wait for, and that what is said of a
// circle ends what is open. The test is all others.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "protocol/worker/worker.h"
#include "wire/epoch.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;

constexpr LinkId server_link = 1;
constexpr LinkId coordinator_link = 2;

struct World final : IdleWorkerWorld {
  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte>, Token) override {
    if (link == coordinator_link) {
      said.emplace_back(header.type, std::move(owned));
    } else if (header.type == Type::fail) {
      ++failed;
    }
  }
  Waiting waiting() override { return waits; }
  std::map<std::uint64_t, wire::Wait> described_inside(const std::vector<std::uint64_t>& handles) override {
    ++asked;
    CHECK(std::is_sorted(handles.begin(), handles.end()));
    return {};
  }

  Waiting waits;
  int asked = 0;
  int failed = 0;
  std::vector<std::pair<Type, Bytes>> said;
};

JobConfig two() {
  JobConfig config;
  config.hosts = {"a", "b"};
  config.server_names = {"s"};
  config.server_ranks = {-1};
  config.weights = {1};
  config.segment = config.credit = 4096;
  config.small = 1024;
  CHECK_EQ(problem_with(config), "");
  return config;
}

// Rank 0 of two, which has so many operations open and waits for any of them.
struct Job {
  Job(std::size_t operations, std::size_t name_bytes) {
    worker.attach_server(server_link, 0);
    worker.attach_coordinator(coordinator_link);
    worker.watch_waits();
    world.waits = {1, true, 2 * second, {}};
    for (std::size_t i = 0; i < operations; ++i) {
      Submission submission;
      submission.handle = operations - i;
      submission.collective = Collective::barrier;
      submission.name = std::to_string(i) + std::string(name_bytes, 'x');
      submission.timeout = 1000 * second;
      worker.submit(std::move(submission));
      world.waits.handles.push_back(operations - i);
    }
  }
  void pass(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      worker.on_time(now += second);
    }
  }

  const JobConfig config = two();
  World world;
  BufferPool pool{0};
  Time now = second;
  Worker worker{config, 0, world, pool};
};

}  // namespace

TEST(ten_thousand_operations_are_described_in_one_go_and_said_once) {
  Job job(10'000, 8);
  job.pass(10);
  CHECK_EQ(job.world.asked, 1);
  CHECK_EQ(job.world.said.size(), 1U);
  wire::Waits waits;
  CHECK(job.world.said[0].first == Type::waits && wire::decode(job.world.said[0].second, waits).ok());
  CHECK_EQ(waits.waits.size(), 10'000U);
  CHECK((waits.waits[7].members == std::vector<wire::Stride>{{0, 2, 1}}));
  // Something has changed: then again.
  ++job.world.waits.changes;
  job.pass(10);
  CHECK_EQ(job.world.asked, 2);
}

TEST(what_is_too_much_to_be_said_is_looked_at_once_and_not_every_second) {
  Job job(10'000, 200);
  job.pass(10);
  CHECK_EQ(job.world.asked, 1);
  CHECK_EQ(job.world.said.size(), 0U);
}

TEST(who_answers_that_it_can_call_says_so_again_once_it_cannot) {
  Job job(1, 0);
  job.pass(5);
  CHECK_EQ(job.world.said.size(), 1U);
  job.world.waits.blocked = false;  // for an instant
  const Bytes probe = wire::encode(wire::Probe{1, {}});
  CHECK(frame(job.worker, coordinator_link, {.type = Type::probe}, probe).ok());
  CHECK(job.world.said.back().first == Type::calls);
  job.world.waits.blocked = true;
  job.pass(2);
  CHECK(job.world.said.back().first == Type::waits);
}

TEST(who_waits_for_what_is_being_ended_as_one_of_a_circle_is_about_to_go_on) {
  Job job(1, 0);
  job.pass(5);
  wire::Waits waits;
  CHECK(wire::decode(job.world.said[0].second, waits).ok());
  const Bytes probe = wire::encode(wire::Probe{1, {}});
  for (const std::uint64_t answer : {job.world.waits.changes, std::uint64_t{0}}) {
    CHECK(frame(job.worker, coordinator_link, {.type = Type::probe}, probe).ok());
    wire::Calls calls;
    CHECK(wire::decode(job.world.said.back().second, calls).ok());
    CHECK_EQ(calls.changes, answer);
    const Bytes circle = wire::encode(wire::Circle{{waits.waits[0].call}, "why"});
    CHECK(frame(job.worker, coordinator_link, {.type = Type::circle}, circle).ok());
  }
  // Nor does it say that it waits before its home has answered.
  const std::size_t said = job.world.said.size();
  job.pass(1);
  CHECK_EQ(job.world.said.size(), said);
}

TEST(who_still_waits_because_the_home_was_lost_that_was_to_end_it_says_so_again) {
  Job job(1, 0);
  job.pass(5);
  wire::Waits waits;
  CHECK(wire::decode(job.world.said[0].second, waits).ok());
  const Bytes circle = wire::encode(wire::Circle{{waits.waits[0].call}, "why"});
  CHECK(frame(job.worker, coordinator_link, {.type = Type::circle}, circle).ok());
  CHECK_EQ(job.world.failed, 1);
  const Bytes epoch = wire::encode(wire::Epoch{{1}, "a server was lost"});
  CHECK(frame(job.worker, coordinator_link, {.type = Type::epoch, .epoch = 1}, epoch).ok());
  job.pass(1);
  CHECK_EQ(job.world.said.size(), 2U);
}

TEST(all_that_can_never_be_complete_fails_and_nothing_else) {
  Job job(1000, 0);
  job.pass(5);
  wire::Waits waits;
  CHECK(wire::decode(job.world.said[0].second, waits).ok());
  wire::Circle circle{{}, "why"};
  for (std::size_t i = 0; i < 900; ++i) {
    circle.calls.push_back(waits.waits[i].call);
  }
  const Bytes bytes = wire::encode(circle);
  CHECK(frame(job.worker, coordinator_link, {.type = Type::circle}, bytes).ok());
  CHECK_EQ(job.world.failed, 900);
}

RUN_TESTS()
