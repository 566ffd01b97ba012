// The coordinator's machine: each test plays the workers, and hears what they are told.
#include "protocol/coordinator/coordinator.h"

#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "protocol/coordinator/circles.h"
#include "wire/epoch.h"
#include "wire/waits.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;

struct World final : CoordinatorWorld {
  struct Frame {
    LinkId link = 0;
    wire::Header header;
    Bytes payload;
  };

  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> /*borrowed*/,
            Token /*token*/) override {
    frames.push_back({link, header, std::move(owned)});
  }
  void detach(Token /*token*/) override {}
  void close(LinkId /*link*/) override {}
  void warn(std::string text) override { warnings.push_back(std::move(text)); }

  std::vector<Frame> frames;
  std::vector<std::string> warnings;
};

constexpr wire::ServerId one_process{std::byte{1}};
constexpr wire::ServerId another_process{std::byte{2}};

// Two dedicated servers of these weights, then those in the processes of three ranks.
JobConfig config_of(std::uint32_t first, std::uint32_t second, std::uint32_t of_ranks) {
  JobConfig config;
  config.hosts = {"a", "b", "c"};
  config.server_names = {"s", "t", "a (rank 0)", "b (rank 1)", "c (rank 2)"};
  config.server_ranks = {-1, -1, 0, 1, 2};
  config.weights = {first, second, of_ranks, of_ranks, of_ranks};
  config.standby = of_ranks == 0;
  return config;
}

// The same, each server with a lane on each of two networks.
JobConfig config_of_networks(std::uint32_t dedicated, std::uint32_t of_ranks) {
  const JobConfig one = config_of(dedicated, dedicated, of_ranks);
  JobConfig config = one;
  config.server_names.clear();
  config.server_ranks.clear();
  config.weights.clear();
  for (std::size_t server = 0; server < one.weights.size(); ++server) {
    for (const char* network : {" (eth0)", " (eth1)"}) {
      config.server_names.push_back(one.server_names[server] + network);
      config.server_ranks.push_back(one.server_ranks[server]);
      config.weights.push_back(one.weights[server]);
    }
  }
  return config;
}

struct Job {
  explicit Job(const JobConfig& job) : config(job), coordinator(config, world) {
    for (std::uint32_t rank = 0; rank < config.size(); ++rank) {
      coordinator.attach_worker(rank + 1, rank);
    }
  }

  void hears(std::uint32_t rank, const wire::Header& header, const Bytes& payload) {
    CHECK(frame(coordinator, rank + 1, header, payload).ok());
  }
  // The rank's link to that server has broken.
  void reports(std::uint32_t rank, std::uint32_t server) {
    const wire::Loss loss{wire::Loss::Kind::server, server, Status::error(Code::peer_lost, "connection reset")};
    hears(rank, {.type = Type::report}, wire::encode(loss));
  }
  void reaches(std::uint32_t rank, const wire::Attempt& attempt, const wire::ServerId& process) {
    hears(rank, {.type = Type::reached}, wire::encode(wire::Reached{attempt, process}));
  }
  void leaves(std::uint32_t rank) { hears(rank, {.type = Type::leave}, {}); }
  void dies(std::uint32_t rank) { coordinator.on_lost(rank + 1, Status::error(Code::peer_lost, "closed by peer")); }
  void passes(Time span) {
    now += span;
    coordinator.on_time(now);
  }

  // What the rank was last told of this type, or null.
  const World::Frame* told(std::uint32_t rank, Type type) const {
    const auto last = std::find_if(world.frames.rbegin(), world.frames.rend(), [&](const World::Frame& frame) {
      return frame.link == rank + 1 && frame.header.type == type;
    });
    return last == world.frames.rend() ? nullptr : &*last;
  }
  std::size_t times_told(std::uint32_t rank, Type type) const {
    return static_cast<std::size_t>(
        std::count_if(world.frames.begin(), world.frames.end(),
                      [&](const World::Frame& frame) { return frame.link == rank + 1 && frame.header.type == type; }));
  }
  // The attempt that the rank was last asked to make.
  wire::Attempt asked(std::uint32_t rank) const {
    const World::Frame* frame = told(rank, Type::reconnect);
    CHECK(frame != nullptr);
    wire::Attempt attempt;
    CHECK(wire::decode(frame->payload, attempt).ok());
    return attempt;
  }
  // Of the epoch that the ranks were last told of.
  std::vector<std::uint32_t> weights() const {
    const World::Frame* frame = told(0, Type::epoch);
    wire::Epoch epoch;
    CHECK(frame != nullptr && wire::decode(frame->payload, epoch).ok());
    return epoch.weights;
  }
  // What the rank was told when all was lost.
  std::string why_lost(std::uint32_t rank) const {
    const World::Frame* frame = told(rank, Type::lost);
    wire::Loss loss;
    CHECK(frame != nullptr && wire::decode(frame->payload, loss).ok());
    return loss.status.message;
  }
  // All ranks reach it, as soon as they are asked to.
  void comes_back(std::uint32_t server) {
    passes(8 * second);
    CHECK_EQ(asked(0).server, server);
    for (std::uint32_t rank = 0; rank < config.size(); ++rank) {
      reaches(rank, asked(rank), one_process);
    }
  }

  const JobConfig config;
  World world;
  Coordinator coordinator;
  Time now = 0;
};

bool names(const std::string& message, const std::string& what) { return message.find(what) != std::string::npos; }

using Weights = std::vector<std::uint32_t>;

// Longer than a report waits for the word of the rank that it is about.
constexpr Time a_while = second;

}  // namespace

TEST(lanes_over_one_network_are_lost_without_those_over_the_other) {
  Job job(config_of_networks(1, 0));
  job.reports(1, 1);
  CHECK(job.weights() == Weights({1, 0, 1, 1, 0, 0, 0, 0, 0, 0}));
  job.comes_back(1);
  CHECK(job.weights() == Weights({1, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(a_rank_that_is_reached_over_another_network_is_not_lost_with_one) {
  Job job(config_of_networks(0, 1));
  job.reports(1, 9);  // rank 2's, eth1
  job.passes(a_while);
  CHECK(job.told(0, Type::lost) == nullptr);
  CHECK(job.weights() == Weights({0, 0, 0, 0, 1, 1, 1, 1, 1, 0}));
  const World::Frame* frame = job.told(0, Type::epoch);
  wire::Epoch epoch;
  CHECK(frame != nullptr && wire::decode(frame->payload, epoch).ok());
  CHECK(names(epoch.text, "server c (rank 2) (eth1) is lost: rank 1 (b) cannot reach it"));
  CHECK(names(epoch.text, "goes over other networks"));
  job.reports(0, 8);  // and eth0: there is no other
  job.passes(a_while);
  CHECK(names(job.why_lost(0), "rank 2 (c) is lost"));
}

TEST(a_cut_that_costs_several_servers_is_one_epoch) {
  Job job(config_of_networks(0, 1));
  job.reports(1, 5);  // rank 0's, eth1
  job.reports(0, 7);  // rank 1's
  job.reports(2, 7);
  job.passes(a_while);
  CHECK_EQ(job.times_told(0, Type::epoch), std::size_t{1});
  CHECK(job.weights() == Weights({0, 0, 0, 0, 1, 0, 1, 0, 1, 1}));
  wire::Epoch epoch;
  CHECK(wire::decode(job.told(0, Type::epoch)->payload, epoch).ok());
  CHECK(names(epoch.text, "server a (rank 0) (eth1) is lost: rank 1 (b) cannot reach it"));
  CHECK(names(epoch.text, "; lost with it: b (rank 1) (eth1). What"));
}

TEST(a_process_that_ends_after_its_rank_has_left_is_lost_on_all_networks) {
  Job job(config_of_networks(0, 1));
  job.leaves(2);
  job.dies(2);
  CHECK(job.weights() == Weights({0, 0, 0, 0, 1, 1, 1, 1, 0, 0}));
}

TEST(a_rank_with_a_control_link_in_each_network_is_lost_with_the_last) {
  Job job(config_of_networks(1, 0));
  const LinkId second = 100;  // rank 1's
  job.coordinator.attach_worker(second, 1);
  const wire::Loss loss{wire::Loss::Kind::server, 1, Status::error(Code::peer_lost, "connection reset")};
  const wire::Header report{.type = Type::report};
  CHECK(frame(job.coordinator, 2, report, wire::encode(loss)).ok());
  CHECK_EQ(job.times_told(1, Type::epoch), std::size_t{1});
  CHECK(frame(job.coordinator, second, report, wire::encode(loss)).ok());  // the same again
  CHECK_EQ(job.times_told(1, Type::epoch), std::size_t{1});
  job.dies(1);
  CHECK(job.told(0, Type::lost) == nullptr);
  CHECK(job.world.warnings.size() == 1 &&
        names(job.world.warnings[0], "rank 1 (b) and rank 0 (a) has ended (closed by"));
  const wire::Loss another{wire::Loss::Kind::server, 3, Status::error(Code::peer_lost, "connection reset")};
  CHECK(frame(job.coordinator, second, report, wire::encode(another)).ok());
  CHECK_EQ(job.times_told(0, Type::epoch), std::size_t{2});
  CHECK_EQ(job.times_told(1, Type::epoch), std::size_t{1});
  job.coordinator.on_lost(second, Status::error(Code::peer_lost, "connection reset"));
  CHECK(names(job.why_lost(0), "rank 1 (b) is lost"));
}

TEST(what_is_said_goes_over_every_control_link_of_a_rank) {
  Job job(config_of_networks(1, 0));
  const LinkId second = 100;
  job.coordinator.attach_worker(second, 1);
  job.reports(2, 0);
  const auto is_told = [](LinkId link) {
    return [link](const World::Frame& said) { return said.link == link && said.header.type == Type::epoch; };
  };
  CHECK(std::any_of(job.world.frames.begin(), job.world.frames.end(), is_told(2)));
  CHECK(std::any_of(job.world.frames.begin(), job.world.frames.end(), is_told(second)));
}

TEST(a_server_that_all_ranks_reach_again_is_used_again) {
  Job job(config_of(2, 1, 0));
  job.reports(1, 0);
  CHECK(job.weights() == Weights({0, 1, 0, 0, 0}));
  job.comes_back(0);
  CHECK(job.weights() == Weights({2, 1, 0, 0, 0}));
  CHECK(job.world.warnings.empty());
}

TEST(a_server_that_ranks_reach_as_different_processes_is_not_used_and_that_is_said_once) {
  Job job(config_of(1, 1, 0));
  job.reports(1, 0);
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    job.passes(8 * second);
    job.reaches(0, job.asked(0), one_process);
    job.reaches(2, job.asked(2), one_process);
    job.reaches(1, job.asked(1), another_process);
    CHECK_EQ(job.asked(1).number, attempt);
  }
  CHECK_EQ(job.times_told(0, Type::epoch), 1U);
  CHECK_EQ(job.world.warnings.size(), 1U);
  CHECK(job.world.warnings[0].find("ranks 0 (a), 1 (b) reach different processes") != std::string::npos);
  job.comes_back(0);
  CHECK(job.weights() == Weights({1, 1, 0, 0, 0}));
}

TEST(an_attempt_that_a_rank_never_answers_is_given_up_and_made_again) {
  Job job(config_of(1, 1, 0));
  job.reports(1, 0);
  job.passes(second);
  const wire::Attempt first = job.asked(0);
  job.reaches(0, first, one_process);
  job.reaches(1, first, one_process);
  CHECK(job.coordinator.deadline() < never);
  job.passes(job.coordinator.deadline() - job.now);
  CHECK(job.now < 60 * second);
  job.passes(job.coordinator.deadline() - job.now);
  CHECK_EQ(job.asked(0).number, first.number + 1);
  job.reaches(2, first, one_process);  // too late
  CHECK_EQ(job.times_told(0, Type::epoch), 1U);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    job.reaches(rank, job.asked(rank), one_process);
  }
  CHECK_EQ(job.times_told(0, Type::epoch), 2U);
}

TEST(the_break_of_a_link_that_stands_by_is_said_once_and_ends_nothing) {
  Job job(config_of(1, 1, 0));
  job.reports(1, 4);
  job.reports(0, 4);
  job.passes(a_while);
  CHECK(job.told(0, Type::lost) == nullptr && job.told(0, Type::epoch) == nullptr);
  CHECK_EQ(job.world.warnings.size(), 1U);
  CHECK(job.world.warnings[0].find("server c (rank 2) is lost: rank 1 (b) cannot reach it") != std::string::npos);
  job.reports(1, 0);
  job.reports(1, 1);
  CHECK(job.weights() == Weights({0, 0, 1, 1, 0}));
  CHECK(job.told(0, Type::lost) == nullptr);
}

TEST(a_server_that_was_called_up_and_cannot_be_reached_is_done_without) {
  Job job(config_of(1, 1, 0));
  job.reports(1, 0);
  job.reports(1, 1);
  CHECK(job.weights() == Weights({0, 0, 1, 1, 1}));
  job.reports(1, 4);
  job.passes(a_while);
  CHECK(job.weights() == Weights({0, 0, 1, 1, 0}));
  CHECK(job.told(0, Type::lost) == nullptr);
}

TEST(without_a_server_that_all_ranks_reach_the_loss_of_the_last_dedicated_one_ends_the_job) {
  Job job(config_of(1, 1, 0));
  job.reports(1, 2);
  job.reports(2, 3);
  job.reports(0, 4);
  job.passes(a_while);
  job.reports(1, 0);
  CHECK(job.told(1, Type::lost) == nullptr);
  job.reports(1, 1);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(names(job.why_lost(rank), "no rank is left whose server all others reach"));
  }
}

TEST(where_ranks_are_not_to_average_the_loss_of_the_last_server_says_so_and_what_to_do) {
  JobConfig config = config_of(1, 0, 0);
  config.server_names.erase(config.server_names.begin() + 1);
  config.server_ranks.erase(config.server_ranks.begin() + 1);
  config.weights.erase(config.weights.begin() + 1);
  config.standby = false;
  Job job(config);
  job.reports(1, 0);
  CHECK(
      names(job.why_lost(2), "server s is lost: rank 1 (b) cannot reach it (connection reset), and there is no other"));
  CHECK(names(job.why_lost(2), "SHOAL_COLOCATED=never keeps ranks from averaging"));
  CHECK(names(job.why_lost(2), "with more servers or without SHOAL_COLOCATED=never"));
}

TEST(a_dedicated_server_without_a_share_that_returns_takes_over_from_the_ranks) {
  Job job(config_of(1, 0, 0));
  job.reports(1, 1);
  CHECK(job.told(0, Type::epoch) == nullptr);  // it averaged nothing
  job.reports(1, 0);
  CHECK(job.weights() == Weights({0, 0, 1, 1, 1}));
  job.passes(second);
  const wire::Attempt attempt{1, 1};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    job.reaches(rank, attempt, one_process);
  }
  CHECK(job.weights() == Weights({0, 1, 0, 0, 0}));
}

TEST(a_dedicated_server_without_a_share_that_returns_while_others_average_changes_nothing) {
  Job job(config_of(1, 0, 0));
  job.reports(1, 1);
  job.comes_back(1);
  CHECK(job.told(0, Type::epoch) == nullptr);
  job.reports(2, 0);
  CHECK(job.weights() == Weights({0, 1, 0, 0, 0}));
  job.comes_back(0);
  CHECK(job.weights() == Weights({1, 1, 0, 0, 0}));
}

// How long after its second loss a server is tried that was back for so long.
Time second_wait(std::uint32_t peer_timeout, Time back_for) {
  JobConfig config = config_of(1, 1, 0);
  config.peer_timeout = peer_timeout;
  Job job(config);
  job.reports(1, 0);
  job.comes_back(0);
  job.passes(back_for);
  job.reports(1, 0);
  return job.coordinator.deadline() - job.now;
}

TEST(how_soon_is_soon_again_grows_with_the_peer_timeout) {
  CHECK_EQ(second_wait(15, 59 * second), 2 * second);
  CHECK_EQ(second_wait(15, 61 * second), second);
  CHECK_EQ(second_wait(1, 59 * second), 2 * second);
  CHECK_EQ(second_wait(60, 239 * second), 2 * second);
  CHECK_EQ(second_wait(60, 241 * second), second);
}

TEST(a_rank_that_averages_from_the_start_and_cannot_be_reached_is_lost) {
  Job job(config_of(1, 1, 1));
  job.reports(1, 4);
  CHECK(job.told(0, Type::lost) == nullptr);  // it may have left
  job.passes(a_while);
  CHECK(job.told(0, Type::lost) != nullptr);
  CHECK(job.told(0, Type::epoch) == nullptr);
}

TEST(what_a_rank_serves_that_has_left_is_done_without_when_its_process_ends) {
  Job job(config_of(1, 1, 1));
  job.leaves(2);
  CHECK(job.told(0, Type::epoch) == nullptr);
  job.dies(2);
  CHECK(job.weights() == Weights({1, 1, 1, 1, 0}));
  CHECK(job.told(0, Type::lost) == nullptr);
}

TEST(ranks_that_have_left_do_not_take_over_but_rank_0_does) {
  Job job(config_of(1, 1, 0));
  job.leaves(0);
  job.leaves(2);
  job.reports(1, 0);
  job.reports(1, 1);
  CHECK(job.weights() == Weights({0, 0, 1, 1, 0}));
}

// --- What ranks say that they wait for ---

namespace {

constexpr std::size_t room = 10'000;

// For an operation that has this name, of ranks 0 and 1 or of others.
wire::Wait wait_for(const std::string& name, const wire::Stride& members = {0, 2, 1}) {
  wire::Wait wait;
  wait.call.name = name;
  wait.collective = Collective::barrier;
  wait.members = {members};
  return wait;
}

Bytes waits_for(const std::string& name) { return wire::encode(wire::Waits{1, {wait_for(name)}}); }

// Rank 2 waits for as many operations of its own as there is room for.
Bytes all_that_there_is_room_for() {
  wire::Waits waits{1, {}};
  do {
    waits.waits.push_back(wait_for("z", {2, 1, 1}));
  } while (Circles::bytes_of(waits) <= room);
  waits.waits.pop_back();
  return wire::encode(waits);
}

// Three ranks, whose waits may take 10,000 bytes at the coordinator.
JobConfig with_little_room() {
  JobConfig config = config_of(1, 1, 0);
  config.tables.waits = room;
  return config;
}

// Ranks 0 and 1 have said that they lack each other: whether they are asked.
bool are_asked(Job& job) {
  for (int looks = 0; looks < 3; ++looks) {
    job.passes(second);
  }
  return job.told(0, Type::probe) != nullptr && job.told(1, Type::probe) != nullptr;
}

}  // namespace

TEST(who_says_that_it_waits_for_more_than_there_is_room_for_is_not_asked_and_that_is_said_once) {
  Job job(with_little_room());
  const auto say_all = [&] {
    job.hears(0, {.type = Type::waits}, waits_for("x"));
    job.hears(1, {.type = Type::waits}, waits_for("y"));
  };
  job.hears(2, {.type = Type::waits}, all_that_there_is_room_for());
  CHECK(job.world.warnings.empty());
  say_all();
  say_all();
  CHECK(!are_asked(job));
  CHECK_EQ(job.world.warnings.size(), 1U);
  CHECK(names(job.world.warnings[0], "on rank 0 (a), 10000 bytes (waits_bytes)"));
  // There is room again. What a rank says anew takes the place of what it said before.
  job.leaves(2);
  for (int i = 0; i < 200; ++i) {
    say_all();
  }
  CHECK(are_asked(job));
  CHECK_EQ(job.world.warnings.size(), 1U);
}

TEST(what_is_on_its_way_takes_room_too_and_what_has_none_is_not_read) {
  Job job(with_little_room());
  const auto begins = [&](std::uint32_t rank, std::uint32_t bytes) {
    const Placement place = job.coordinator.on_header(rank + 1, {.type = Type::waits, .length = bytes});
    CHECK(place.status.ok() && place.memory != nullptr);
    return place.memory;
  };
  const std::byte* const read = begins(2, 9'900);
  const std::byte* const unread = begins(0, 200);
  CHECK(unread != read);
  CHECK(begins(1, wire::circle_bytes) == unread);
  CHECK(job.coordinator.on_payload(1).ok() && job.coordinator.on_payload(2).ok());
  CHECK_EQ(job.world.warnings.size(), 1U);
  // What was on its way is lost with its link.
  job.dies(2);
  job.hears(0, {.type = Type::waits}, waits_for("x"));
  job.hears(1, {.type = Type::waits}, waits_for("y"));
  CHECK(are_asked(job));
}

RUN_TESTS()
