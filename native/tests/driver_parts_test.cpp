// What every driver needs, with stand-in machines: follow-ups, links in memory, and connections of any kind.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "drivers/common/connection.h"
#include "drivers/common/follow_ups.h"
#include "drivers/common/memory_links.h"

namespace {

using namespace shoal;

// Writes down what it hears.
struct Recorder final : Machine {
  Placement on_header(LinkId /*link*/, const wire::Header& header) override {
    if (refuses) {
      return {Status::error(Code::protocol, "refused"), nullptr};
    }
    payload.resize(header.length);
    return {{}, payload.data()};
  }
  Status on_payload(LinkId /*link*/) override {
    frames.push_back(payload);
    return {};
  }
  void on_sent(Token token) override { sent.push_back(token); }
  void on_lost(LinkId link, const Status& /*why*/) override { lost.push_back(link); }
  void on_time(Time /*now*/) override {}
  Time deadline() const override { return never; }

  bool refuses = false;
  Bytes payload;
  std::vector<Bytes> frames;
  std::vector<Token> sent;
  std::vector<LinkId> lost;
};

// Two machines and a link: end 1 is the first's, end 2 the second's.
struct Pair {
  Pair() { links.add(1, here, 2, there); }

  void send(Bytes owned, std::span<const std::byte> borrowed, Token token) {
    const auto length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
    links.send(here, 1, {.type = wire::Type::data, .length = length}, std::move(owned), borrowed, token);
    links.check_invariants();
  }
  void carry_out() {
    while (!follow_ups.empty()) {
      const FollowUp next = follow_ups.take();
      if (next.kind == FollowUp::Kind::sent) {
        next.machine->on_sent(next.token);
      } else {
        links.carry_out_next();
      }
      links.check_invariants();
    }
  }

  Recorder here;
  Recorder there;
  FollowUps follow_ups;
  MemoryLinks links{follow_ups};
};

}  // namespace

TEST(sent_tokens_come_before_all_else_and_the_rest_in_order) {
  Recorder machine;
  FollowUps follow_ups;
  follow_ups.add_summed(machine, 1);
  follow_ups.add_read(machine, 7);
  follow_ups.add_sent(machine, 0);  // nobody wants to know
  follow_ups.add_sent(machine, {2, 0, 3});
  CHECK_EQ(follow_ups.take().token, 2U);
  CHECK_EQ(follow_ups.take().token, 3U);
  CHECK(follow_ups.take().kind == FollowUp::Kind::summed);
  CHECK_EQ(follow_ups.take().link, 7U);
  CHECK(follow_ups.empty());
}

TEST(nothing_follows_for_a_machine_that_is_forgotten) {
  Recorder gone;
  Recorder stays;
  FollowUps follow_ups;
  follow_ups.add_sent(gone, 1);
  follow_ups.add_summed(gone, 2);
  follow_ups.add_summed(stays, 3);
  follow_ups.forget(gone);
  CHECK_EQ(follow_ups.take().token, 3U);
  CHECK(follow_ups.empty());
}

TEST(frames_arrive_after_the_event_whole_and_in_order_and_their_tokens_come_back) {
  Pair pair;
  const Bytes borrowed{std::byte{2}};
  pair.send({std::byte{1}}, borrowed, 5);
  pair.send({std::byte{3}}, {}, 0);
  CHECK(pair.there.frames.empty() && pair.here.sent.empty());
  pair.carry_out();
  CHECK(pair.there.frames == (std::vector<Bytes>{{std::byte{1}, std::byte{2}}, {std::byte{3}}}));
  CHECK(pair.here.sent == std::vector<Token>{5});
}

TEST(detached_bytes_are_those_of_the_moment) {
  Pair pair;
  Bytes array{std::byte{1}};
  pair.send({}, array, 5);
  pair.send({}, array, 6);
  pair.links.detach(pair.here, 5);
  pair.links.check_invariants();
  array[0] = std::byte{9};
  pair.carry_out();
  CHECK(pair.there.frames == (std::vector<Bytes>{{std::byte{1}}, {std::byte{9}}}));
}

TEST(the_other_end_of_a_closed_link_hears_so_and_frames_on_it_are_thrown_away) {
  Pair pair;
  pair.send({std::byte{1}}, {}, 5);
  pair.links.close(1);
  pair.carry_out();
  CHECK(pair.there.frames.empty());
  CHECK(pair.there.lost == std::vector<LinkId>{2});
  CHECK(pair.here.lost.empty());
  CHECK(pair.here.sent == std::vector<Token>{5});
  CHECK_EQ(pair.links.size(), 0U);
  CHECK_EQ(pair.links.gone(), 2U);
}

TEST(a_frame_that_is_refused_ends_the_link_at_both_ends) {
  Pair pair;
  pair.there.refuses = true;
  pair.send({std::byte{1}}, {}, 0);
  pair.carry_out();
  CHECK(pair.there.lost == std::vector<LinkId>{2});
  CHECK(pair.here.lost == std::vector<LinkId>{1});
}

TEST(what_a_forgotten_machine_sent_is_not_delivered) {
  Pair pair;
  const Bytes borrowed{std::byte{1}};
  pair.send({}, borrowed, 5);
  pair.links.forget(pair.here);
  pair.follow_ups.forget(pair.here);
  pair.links.check_invariants();
  pair.carry_out();
  CHECK(pair.there.frames.empty() && pair.here.sent.empty());
  CHECK(pair.there.lost == std::vector<LinkId>{2});
  CHECK_EQ(pair.links.count(pair.here), 0U);
}

TEST(a_connection_is_taken_once_by_who_knows_its_kind) {
  struct Cable {
    int number = 0;
  };
  Connection connection(Cable{7});
  CHECK(connection.take<std::string>() == nullptr);
  const auto taken = connection.take<Cable>();
  CHECK(taken != nullptr && taken->number == 7);
  CHECK(connection.take<Cable>() == nullptr);
}

RUN_TESTS()
