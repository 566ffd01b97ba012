// The parts of a coordinator, each alone: who is there, what is counted before it is read, what servers weigh, how a
// lost one comes back, and who stands still.
#include <string>
#include <vector>

#include "check.h"
#include "protocol/coordinator/active_weights.h"
#include "protocol/coordinator/inbox.h"
#include "protocol/coordinator/members.h"
#include "protocol/coordinator/reconnection.h"
#include "protocol/coordinator/reports.h"
#include "protocol/coordinator/standstill.h"
#include "protocol/keys.h"

namespace {

using namespace shoal;
using wire::Type;

struct World final : CoordinatorWorld {
  void send(LinkId link, const wire::Header& header, Bytes /*owned*/, std::span<const std::byte> /*borrowed*/,
            Token /*token*/) override {
    sent.emplace_back(link, header.type);
  }
  void detach(Token /*token*/) override {}
  void close(LinkId /*link*/) override {}
  void warn(std::string /*text*/) override {}

  std::vector<std::pair<LinkId, Type>> sent;
};

// Two dedicated servers, the first with two lanes, then those of two ranks.
JobConfig two_servers(std::uint32_t first, std::uint32_t second, bool standby) {
  JobConfig config;
  config.hosts = {"a", "b"};
  config.server_names = {"s", "s", "t", "a (rank 0)", "b (rank 1)"};
  config.server_ranks = {-1, -1, -1, 0, 1};
  config.weights = {first, first, second, 0, 0};
  config.standby = standby;
  return config;
}

bool all_are_there(std::uint32_t /*rank*/) { return true; }

}  // namespace

TEST(the_end_is_told_once_to_those_whose_links_stand) {
  World world;
  Members members(3, world);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    members.attach(rank + 10, rank);
  }
  members.leave(0);
  CHECK(members.lose(1));
  CHECK(!members.lose(1));
  members.detach(11);
  members.end_if_all_gone();
  CHECK(world.sent.empty() && !members.has_ended());
  members.leave(2);
  members.end_if_all_gone();
  members.end_if_all_gone();
  CHECK(world.sent == (std::vector<std::pair<LinkId, Type>>{{10, Type::ended}, {12, Type::ended}}));
  members.check_invariants();
}

TEST(what_is_counted_is_counted_until_it_has_come_or_its_link_is_gone) {
  Inbox inbox;
  const wire::Header header{.type = Type::waits, .length = 100};
  inbox.begin_counted(1, header, true);
  inbox.begin_counted(2, header, true);
  inbox.begin(3, header);
  CHECK_EQ(inbox.arriving(), 200U);
  inbox.check_invariants();
  CHECK_EQ(inbox.take_counted(1)->size(), 100U);
  CHECK_EQ(inbox.arriving(), 100U);
  inbox.forget(2);
  CHECK_EQ(inbox.arriving(), 0U);
  CHECK(inbox.begin_counted(4, header, false) != nullptr);
  CHECK(!inbox.take_counted(4));
  inbox.check_invariants();
}

TEST(one_report_of_a_rank_is_enough_and_waits_for_its_own_word) {
  Reports reports;
  const wire::Loss loss{wire::Loss::Kind::rank, 1, Status::error(Code::peer_lost, "reset")};
  reports.add({0, loss}, 0);
  reports.add({2, loss}, second / 4);
  CHECK_EQ(reports.deadline(), second / 2);
  CHECK(!reports.next(second / 2 - 1));
  CHECK_EQ(reports.next(second / 2)->by, 0U);
  CHECK(!reports.next(second));
  reports.add({2, loss}, second);
  CHECK_EQ(reports.deadline(), never);
  reports.check_invariants();
}

TEST(a_server_is_lost_and_comes_back_with_all_of_its_lanes) {
  const JobConfig config = two_servers(2, 1, false);
  ActiveWeights weights(config);
  weights.lose(0);
  CHECK(weights.decide(all_are_there));
  CHECK(weights.weights() == (std::vector<std::uint32_t>{0, 0, 1, 0, 0}));
  CHECK(weights.is_lost(0) && !weights.averages(1));
  CHECK_EQ(weights.dedicated_left(), "1 of 2");
  weights.check_invariants();
  weights.bring_back(0);
  CHECK(weights.decide(all_are_there));
  CHECK(weights.weights() == config.weights);
  weights.check_invariants();
}

TEST(where_no_weight_is_left_dedicated_servers_take_over_before_ranks) {
  const JobConfig config = two_servers(1, 0, true);
  ActiveWeights weights(config);
  weights.lose(0);
  CHECK(weights.decide(all_are_there));
  CHECK(weights.weights() == (std::vector<std::uint32_t>{0, 0, 1, 0, 0}));
  weights.lose(2);
  CHECK(weights.decide(all_are_there));
  CHECK(weights.weights() == (std::vector<std::uint32_t>{0, 0, 0, 1, 1}));
  weights.check_invariants();
}

// Two ranks, each with a lane on a fast network, and one on a slow network that is not worth a share.
TEST(lanes_without_a_weight_take_over_where_the_network_of_all_others_is_lost) {
  JobConfig config;
  config.hosts = {"a", "b"};
  config.server_names = {"a (eth0)", "a (eth1)", "b (eth0)", "b (eth1)"};
  config.server_ranks = {0, 0, 1, 1};
  config.weights = {3, 0, 3, 0};
  config.lanes = 2;
  config.networks = 2;
  ActiveWeights weights(config);
  weights.lose(2);
  CHECK(weights.decide(all_are_there));
  CHECK(weights.weights() == (std::vector<std::uint32_t>{3, 0, 0, 0}));
  weights.lose(0);
  CHECK(weights.decide(all_are_there));
  CHECK(weights.weights() == (std::vector<std::uint32_t>{0, 1, 0, 1}));
  weights.check_invariants();
}

TEST(an_attempt_succeeds_when_all_ranks_have_reached_the_process_that_rank_0_has) {
  Reconnection reconnection(2, 60 * second);
  CHECK(!reconnection.is_lost());
  reconnection.lose(0);
  CHECK_EQ(reconnection.deadline(), second);
  reconnection.begin_attempt(second);
  const wire::ServerId here{std::byte{1}};
  const wire::ServerId elsewhere{std::byte{2}};
  using Answer = Reconnection::Answer;
  CHECK(reconnection.hear(0, {{0, 1}, here}, false, second) == Answer::first);
  reconnection.check_invariants();
  CHECK(reconnection.hear(1, {{0, 1}, elsewhere}, false, second) == Answer::ambiguous);
  CHECK(reconnection.hear(1, {{0, 1}, here}, false, second) == Answer::stale);
  CHECK_EQ(reconnection.deadline(), 2 * second);
  reconnection.begin_attempt(2 * second);
  CHECK(reconnection.hear(0, {{0, 2}, here}, false, 2 * second) == Answer::first);
  CHECK(reconnection.hear(1, {{0, 2}, here}, false, 2 * second) == Answer::all);
  reconnection.succeed(2 * second);
  CHECK(!reconnection.is_lost());
  CHECK_EQ(reconnection.deadline(), never);
  reconnection.check_invariants();
}

TEST(ranks_that_wait_for_each_other_s_operations_stand_still_and_who_waits_for_neither_does_not) {
  const JobConfig config = two_servers(1, 1, false);
  const auto wait_for = [](const char* name) {
    wire::Wait wait;
    wait.call = {world_group_id(2), 0, name};
    wait.collective = Collective::barrier;
    wait.members = {{0, 2, 1}};
    return std::vector{wait};
  };
  const std::vector<wire::Wait> first = wait_for("a");
  const std::vector<wire::Wait> second_one = wait_for("b");
  Standstill apart(config);
  apart.add(0, first, true);
  apart.add(1, second_one, true);
  CHECK(apart.stuck() == (std::vector<std::uint32_t>{0, 1}));
  apart.check_invariants();

  Standstill together(config);
  together.add(0, first, true);
  together.add(1, second_one, true);
  together.note_called(1, first[0].call);
  CHECK(together.stuck().empty());
  together.check_invariants();
}

RUN_TESTS()
