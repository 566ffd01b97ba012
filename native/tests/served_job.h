// A job of three ranks and one server for tests of the server's machine, which play the workers themselves.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "check.h"
#include "protocol/keys.h"
#include "protocol/server/server.h"
#include "wire/epoch.h"
#include "wire/late.h"
#include "worlds.h"

namespace shoal::tests {

using wire::Type;

// Keeps what was sent; nothing is ever written to a network, so on_sent comes only when a test says so.
struct ServedWorld final : ServerWorld {
  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> /*borrowed*/,
            Token token) override {
    sent[link].push_back(header);
    last = std::move(owned);
    tokens[link].push_back(token);
  }
  void detach(Token /*token*/) override {}
  void close(LinkId /*link*/) override {}
  void compete(LinkId link, bool on) override { competing[link] = on; }
  void sum(Sum sum) override { sums.push_back(sum.token); }

  std::map<LinkId, bool> competing;
  std::vector<Token> sums;
  std::map<LinkId, std::vector<wire::Header>> sent;
  std::map<LinkId, std::vector<Token>> tokens;
  Bytes last;
};

// A job of three ranks and one server. The link of a rank has the rank's number.
struct ServedJob {
  explicit ServedJob(std::int32_t held_by = -1, std::uint32_t eager = 1024, std::uint64_t rate = 0)
      : ServedJob(make_config(held_by, eager, rate)) {}

  Status frame(std::uint32_t rank, const wire::Header& header, const Bytes& payload) {
    return shoal::frame(server, rank, header, payload);
  }

  // With `inlined` bytes of inline data.
  Status open(std::uint32_t rank, std::uint64_t number, wire::Opening opening, std::uint32_t inlined,
              std::uint32_t acknowledged = 0) {
    opening.group = world_group_id(config.size());
    opening.key = operation_key(opening.group, opening.name, 0);
    opening.inline_bytes = inlined;
    Bytes payload = wire::encode(opening);
    payload.resize(payload.size() + inlined);
    return frame(rank, {.type = Type::open, .epoch = epoch, .operation = number, .acknowledged = acknowledged},
                 payload);
  }

  // A new epoch, in which the only server goes on.
  void begin_epoch(std::uint32_t rank) {
    epoch = 1;
    CHECK(frame(rank, {.type = Type::epoch, .epoch = epoch}, wire::encode(wire::Epoch{config.weights, ""})).ok());
  }
  void end_reopening(std::uint32_t rank) {
    CHECK(frame(rank, {.type = Type::epoch, .flags = wire::flag_reopened, .epoch = epoch}, {}).ok());
  }
  bool was_told(std::uint32_t rank, Type type) {
    const std::vector<wire::Header>& to = world.sent[rank];
    return std::any_of(to.begin(), to.end(), [type](const wire::Header& header) { return header.type == type; });
  }

  // What the server says to a rank that asks whom its operation waits for.
  std::vector<std::pair<std::uint32_t, wire::Late::Why>> late(std::uint32_t rank, std::uint64_t number) {
    CHECK(frame(rank, {.type = Type::ask, .operation = number}, {}).ok());
    CHECK(world.sent[rank].back().type == Type::late);
    wire::Late answer;
    CHECK(wire::decode(world.last, answer).ok());
    CHECK_EQ(answer.count, answer.members.size());
    std::vector<std::pair<std::uint32_t, wire::Late::Why>> found;
    for (const wire::Late::Member& member : answer.members) {
      found.emplace_back(member.rank, member.why);
    }
    return found;
  }

  static JobConfig make_config(std::int32_t held_by, std::uint32_t eager, std::uint64_t rate) {
    JobConfig config{{"a", "b", "c"}, {"s"}, {held_by}, {1}, 4096, 8192, eager, 1024, 1, 0, false, rate};
    CHECK_EQ(problem_with(config), "");
    return config;
  }

  const JobConfig config;
  std::uint32_t epoch = 0;
  ServedWorld world;
  BufferPool pool{0};
  Server server{config, 0, world, pool};

 protected:
  explicit ServedJob(JobConfig config_of_job) : config(std::move(config_of_job)) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      server.attach_worker(rank, rank);
    }
  }
};

inline wire::Opening opening_of(Collective collective, const char* name, std::uint64_t bytes) {
  wire::Opening opening;
  opening.collective = collective;
  opening.dtype = DType::uint8;
  opening.name = name;
  opening.bytes = bytes;
  opening.shape = {static_cast<std::int64_t>(bytes)};
  return opening;
}

}  // namespace shoal::tests
