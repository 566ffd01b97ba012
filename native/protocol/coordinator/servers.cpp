#include "protocol/coordinator/servers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/invariant.h"

namespace shoal {

using wire::Type;

namespace {

// A server that is lost so soon after it came back is tried less often. Each time costs a peer timeout, so that must
// not be a large part of it.
constexpr Time shortest_probation = 60 * second;
constexpr Time peer_timeouts_of_probation = 4;

Time probation_of(const JobConfig& config) {
  return std::max(shortest_probation, peer_timeouts_of_probation * config.peer_timeout * second);
}

}  // namespace

Servers::Servers(const JobConfig& config, Members& members, CoordinatorWorld& world)
    : config_(config), members_(members), world_(world), active_weights_(config) {}

// --- Losses ---

void Servers::hear_break(std::uint32_t server, std::uint32_t by, const std::string& why, Time now) {
  const auto known = reconnections_.find(server);
  if (known != reconnections_.end() && known->second.is_lost()) {
    known->second.hear_of_break(by, now);
  } else {
    lose(server, "server " + config_.server_names[server] + why, now);
  }
}

void Servers::lose_of_rank(std::uint32_t rank, const std::string& why, Time now) {
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    // Averaging on all networks ends with it.
    if (config_.server_ranks[i] == static_cast<std::int32_t>(rank) && active_weights_.averages(i)) {
      lose(i, "server " + config_.server_names[i] + why, now);
    }
  }
}

bool Servers::has_other_lanes(std::uint32_t server) const {
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    if (config_.server_ranks[i] == config_.server_ranks[server] &&
        config_.server_names[i] != config_.server_names[server] && !active_weights_.is_lost(i)) {
      return true;
    }
  }
  return false;
}

void Servers::lose(std::uint32_t server, const std::string& text, Time now) {
  if (members_.has_ended()) {
    return;
  }
  const bool in_use = active_weights_.averages(server) && !active_weights_.is_lost(server);
  active_weights_.lose(server);
  const std::int32_t holder = config_.server_ranks[server];
  if (holder < 0) {
    reconnections_.try_emplace(server, config_.size(), probation_of(config_)).first->second.lose(now);
  }
  if (in_use) {
    lost_now_.emplace_back(server, text);
  } else if (holder >= 0 && members_.is_there(static_cast<std::uint32_t>(holder)) && !has_other_lanes(server)) {
    world_.warn(text +
                ". It averages nothing, but it will not be there if no dedicated server is left; see whether a "
                "firewall is between them (SHOAL_PORT_RANGE says which ports are used)");
  }
}

void Servers::go_on() {
  if (lost_now_.empty()) {
    return;
  }
  const std::vector<std::pair<std::uint32_t, std::string>> lost = std::exchange(lost_now_, {});
  const std::uint32_t server = lost.front().first;
  const std::string text = text_of(lost);
  const std::vector<std::uint32_t> before = active_weights_.weights();
  decide();
  if (active_weights_.nobody_averages()) {
    broken_ = true;
    const Status why =
        Status::error(Code::peer_lost, text + ", and there is no other: " + active_weights_.why_no_other());
    members_.tell_all(Type::lost, wire::encode(wire::Loss{wire::Loss::Kind::server, server, why}));
    return;
  }
  if (config_.server_ranks[server] >= 0 && has_other_lanes(server)) {
    announce_epoch(text + ". What it averaged goes over other networks; see the interfaces of that one on both hosts");
    return;
  }
  // Whether a server averages now that did not before.
  bool others_have_begun = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    others_have_begun = others_have_begun || (before[i] == 0 && active_weights_.weights()[i] > 0);
  }
  announce_epoch(text + "; dedicated servers left: " + active_weights_.dedicated_left() + ". " +
                 (others_have_begun ? "Ranks and servers that averaged nothing do so now"
                                    : "The others go on with what it averaged") +
                 "; see that server's log");
}

// What is said of the first, and the names of some of the others.
std::string Servers::text_of(const std::vector<std::pair<std::uint32_t, std::string>>& lost) const {
  constexpr std::size_t shown = 8;
  std::string text = lost.front().second;
  for (std::size_t i = 1; i < std::min(lost.size(), shown); ++i) {
    text += (i == 1 ? "; lost with it: " : ", ") + config_.server_names[lost[i].first];
  }
  return lost.size() > shown ? text + " and " + std::to_string(lost.size() - shown) + " more" : text;
}

bool Servers::decide() {
  return active_weights_.decide([this](std::uint32_t rank) { return members_.is_there(rank); });
}

void Servers::announce_epoch(std::string text) {
  ++epoch_;
  members_.tell_all(Type::epoch, wire::encode(wire::Epoch{active_weights_.weights(), std::move(text)}), epoch_);
}

// --- Servers that come back ---

void Servers::on_time(Time now) {
  for (auto& [server, reconnection] : reconnections_) {
    if (reconnection.deadline() > now) {
      continue;
    }
    if (reconnection.is_tried()) {
      reconnection.give_up(now);
    } else {
      try_again(server, reconnection, now);
    }
  }
}

Time Servers::deadline() const {
  Time first = never;
  for (const auto& [server, reconnection] : reconnections_) {
    first = std::min(first, reconnection.deadline());
  }
  return first;
}

void Servers::try_again(std::uint32_t server, Reconnection& reconnection, Time now) {
  if (broken_ || !members_.all_are_there()) {
    reconnection.rest();
    return;
  }
  reconnection.begin_attempt(now);
  ask_to_reach(0, server, reconnection);
}

Status Servers::hear_reached(std::uint32_t rank, const wire::Reached& reached, bool unreachable, Time now) {
  const std::uint32_t server = reached.attempt.server;
  const auto found = reconnections_.find(server);
  if (found == reconnections_.end() || reached.attempt.number > found->second.attempt()) {
    return refused("REACHED of a server that was not to be tried");
  }
  Reconnection& reconnection = found->second;
  switch (reconnection.hear(rank, reached, unreachable, now)) {
    case Reconnection::Answer::first:
      for (std::uint32_t other = 1; other < config_.size(); ++other) {
        ask_to_reach(other, server, reconnection);
      }
      break;
    case Reconnection::Answer::ambiguous:
      if (reconnection.is_first_ambiguity()) {
        warn_of_ambiguity(server, rank);
      }
      break;
    case Reconnection::Answer::all:
      if (members_.all_are_there()) {
        bring_back(server, reconnection, now);
      } else {
        reconnection.rest();
      }
      break;
    default:
      break;
  }
  return {};
}

void Servers::ask_to_reach(std::uint32_t rank, std::uint32_t server, const Reconnection& reconnection) {
  members_.tell(rank, Type::reconnect, wire::encode(wire::Attempt{server, reconnection.attempt()}));
}

// Were it used, ranks would wait for each other at different processes.
void Servers::warn_of_ambiguity(std::uint32_t server, std::uint32_t rank) {
  world_.warn("server " + config_.server_names[server] + " is not used again: " + ranks_text({0, rank}, config_) +
              " reach different processes there, so it is a balancer of load or a name with several machines: name "
              "each server by itself in SHOAL_SERVERS. It is tried further");
}

void Servers::bring_back(std::uint32_t server, Reconnection& reconnection, Time now) {
  reconnection.succeed(now);
  active_weights_.bring_back(server);
  if (decide()) {
    announce_epoch(
        "server " + config_.server_names[server] +
        " is used again: every rank has reached it; dedicated servers left: " + active_weights_.dedicated_left());
  }  // else it is only there again for when others are lost
}

void Servers::check_invariants() const {
  SHOAL_INVARIANT(lost_now_.empty());
  active_weights_.check_invariants();
  for (const auto& [server, reconnection] : reconnections_) {
    reconnection.check_invariants();
    SHOAL_INVARIANT(config_.server_ranks[server] < 0);
    SHOAL_INVARIANT(server == config_.first_lane(server));
    SHOAL_INVARIANT(reconnection.is_lost() == active_weights_.is_lost(server));
  }
  SHOAL_INVARIANT(broken_ || !active_weights_.nobody_averages());  // one may come back when all is over
}

}  // namespace shoal
