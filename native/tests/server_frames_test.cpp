#include "protocol/worker/server_frames.h"

#include <cstdint>
#include <vector>

#include "check.h"
#include "worlds.h"

namespace {

using namespace shoal;
using wire::Type;
using worker::ServerFrames;

struct World final : IdleWorkerWorld {
  void send(LinkId, const wire::Header& header, Bytes, std::span<const std::byte>, Token) override {
    sent.push_back(header);
  }
  std::vector<wire::Header> sent;
};

struct Speaking {
  Speaking() { links.attach_server(1, 0); }

  World world;
  BufferPool pool{0};
  worker::Environment environment{{{"a", "b"}, {"s"}, {-1}, {1}, 4096, 8192, 0, 1024}, 0, world, pool};
  worker::Links links{environment};
  ServerFrames frames{environment, links};
};

TEST(every_frame_says_how_many_results_have_come) {
  Speaking to;
  to.frames.count_result(0);
  to.frames.count_result(0);
  CHECK(to.frames.send(0, {.type = Type::ask}));
  CHECK_EQ(to.world.sent[0].acknowledged, 2U);
  to.frames.check_invariants();
}

TEST(results_that_no_frame_has_acknowledged_are_after_a_while) {
  Speaking to;
  to.frames.count_result(0);
  CHECK_EQ(to.frames.deadline(), ServerFrames::acknowledge_after);
  to.frames.acknowledge(0);
  CHECK_EQ(to.world.sent.size(), 1U);
  CHECK(to.world.sent[0].type == Type::have);
  CHECK_EQ(to.frames.deadline(), never);
  to.frames.acknowledge(second);
  CHECK_EQ(to.world.sent.size(), 1U);
}

TEST(that_an_operation_has_ended_well_goes_ahead_of_the_next_frame) {
  Speaking to;
  to.frames.drop_soon(0, 7);
  to.frames.check_invariants();
  CHECK(to.frames.send(0, {.type = Type::ask}));
  CHECK_EQ(to.world.sent.size(), 2U);
  CHECK(to.world.sent[0].type == Type::drop && to.world.sent[0].operation == 7);
}

TEST(after_the_goodbye_nothing_is_acknowledged) {
  Speaking to;
  to.frames.count_result(0);
  to.frames.end();
  to.frames.acknowledge(second);
  CHECK(to.world.sent.empty());
}

TEST(a_group_is_announced_once_to_each_server_until_its_link_is_closed) {
  Speaking to;
  const worker::Groups groups(to.environment);
  to.frames.announce(0, 0, groups.at(0));
  CHECK(to.world.sent.empty());
  to.frames.announce(0, 1, groups.at(0));
  to.frames.announce(0, 1, groups.at(0));
  CHECK_EQ(to.world.sent.size(), 1U);
  to.frames.restart(0);
  to.frames.announce(0, 1, groups.at(0));
  CHECK_EQ(to.world.sent.size(), 1U);
  to.frames.forget(0);
  to.frames.announce(0, 1, groups.at(0));
  CHECK_EQ(to.world.sent.size(), 2U);
}

TEST(where_there_is_no_link_nothing_is_sent) {
  Speaking to;
  to.links.close_server(0);
  CHECK(!to.frames.send(0, {.type = Type::ask}));
  CHECK(to.world.sent.empty());
}

}  // namespace

RUN_TESTS()
