#include "protocol/worker/server_frames.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal::worker {

using wire::Type;

Time ServerFrames::Server::lacks_since() const {
  return std::min(results == acknowledged ? never : unknown_since, ended.empty() ? never : ended_since);
}

ServerFrames::ServerFrames(const Environment& environment, const Links& links)
    : environment_(environment), links_(links), servers_(environment.config().servers()) {}

bool ServerFrames::send(std::uint32_t server, wire::Header header, wire::Bytes owned,
                        std::span<const std::byte> borrowed, Token token) {
  const std::optional<LinkId> link = links_.server(server);
  if (!link || is_silent_) {
    return false;
  }
  tell_ended(server);
  Server& to = servers_[server];
  header.length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
  header.epoch = environment_.epoch();
  header.acknowledged = to.acknowledged = to.results;
  environment_.world().send(*link, header, std::move(owned), borrowed, token);
  return true;
}

void ServerFrames::announce(std::uint32_t server, std::uint32_t number, const Group& group) {
  // That of all ranks is known everywhere.
  if (number != 0 && servers_[server].announced.insert(number).second) {
    const bool of_nodes = group.senders == Senders::nodes;
    send(server, {.type = Type::group}, wire::encode(wire::GroupMembers{group.id, group.ranks, of_nodes}));
  }
}

void ServerFrames::count_result(std::uint32_t server) {
  Server& from = servers_[server];
  if (from.results == from.acknowledged) {
    from.unknown_since = environment_.now();
  }
  ++from.results;
  acknowledge_at_ = std::min(acknowledge_at_, from.unknown_since + acknowledge_after);
}

void ServerFrames::drop_soon(std::uint32_t home, std::uint64_t number) {
  Server& to = servers_[home];
  if (to.ended.empty()) {
    to.ended_since = environment_.now();
  }
  to.ended.push_back(number);
  acknowledge_at_ = std::min(acknowledge_at_, to.ended_since + acknowledge_after);
}

void ServerFrames::tell_ended(std::uint32_t server) {
  if (servers_[server].ended.empty()) {
    return;
  }
  for (const std::uint64_t number : std::exchange(servers_[server].ended, {})) {
    send(server, {.type = Type::drop, .flags = wire::flag_well, .operation = number});
  }
}

void ServerFrames::acknowledge(Time came_by) {
  acknowledge_at_ = never;
  for (std::uint32_t server = 0; server < servers_.size() && !is_over_; ++server) {
    const Time lacks_since = servers_[server].lacks_since();
    if (lacks_since <= came_by && !servers_[server].ended.empty()) {
      tell_ended(server);
    } else if (lacks_since <= came_by) {
      send(server, {.type = Type::have});
    } else if (lacks_since != never) {
      acknowledge_at_ = std::min(acknowledge_at_, lacks_since + acknowledge_after);
    }
  }
}

void ServerFrames::restart(std::uint32_t server) {
  servers_[server].results = servers_[server].acknowledged = 0;
  servers_[server].ended.clear();
}

void ServerFrames::forget(std::uint32_t server) { servers_[server] = Server{}; }

void ServerFrames::check_invariants() const {
  for (std::uint32_t server = 0; server < servers_.size(); ++server) {
    const Server& one = servers_[server];
    SHOAL_INVARIANT(one.results - one.acknowledged < std::uint32_t{1} << 31);
    const Time lacks_since = one.lacks_since();
    if (lacks_since != never && links_.server(server) && !is_over_) {
      SHOAL_INVARIANT(acknowledge_at_ <= lacks_since + acknowledge_after);
    }
  }
}

}  // namespace shoal::worker
