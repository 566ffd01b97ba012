// The coordinator's decisions about servers: who goes on when one is lost, and when a lost one is used again.
// docs/protocol/recovery.md, Epochs.
#include <utility>

#include "protocol/coordinator/impl.h"
#include "wire/epoch.h"

namespace shoal {

using wire::Type;

namespace {

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace

// --- Losses ---

void Coordinator::Impl::hear_server_report(std::uint32_t by, const wire::Loss& loss) {
  const auto known = reconnections_.find(loss.index);
  if (known != reconnections_.end() && known->second.is_lost()) {
    known->second.hear_of_break(by, now_);
  } else {
    lose_server(loss.index, "server " + config_.server_names[loss.index] + cannot_reach(by, loss));
  }
}

// A rank that has left still serves, if its server averages, until all have left.
void Coordinator::Impl::lose_what_it_serves(std::uint32_t rank, const std::string& text) {
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    if (config_.server_ranks[i] == static_cast<std::int32_t>(rank) && active_weights_.averages(i)) {
      return lose_server(i, "server " + config_.server_names[i] + text);
    }
  }
}

// A server goes with all of its lanes, and the others share what it averaged.
void Coordinator::Impl::lose_server(std::uint32_t index, const std::string& text) {
  if (ended_) {
    return;
  }
  const bool in_use = active_weights_.averages(index);
  active_weights_.lose(index);
  const std::int32_t holder = config_.server_ranks[index];
  if (holder < 0) {
    reconnections_.try_emplace(index, config_.size(), probation_).first->second.lose(now_);
  }
  if (in_use) {
    go_on_without(index, text);
  } else if (holder >= 0 && is_there(static_cast<std::uint32_t>(holder))) {
    world_.warn(text +
                ". It averages nothing, but it will not be there if no dedicated server is left; see whether a "
                "firewall is between them (SHOAL_PORT_RANGE says which ports are used)");
  }
}

void Coordinator::Impl::go_on_without(std::uint32_t index, const std::string& text) {
  const std::vector<std::uint32_t> before = active_weights_.weights();
  decide_shares();
  if (active_weights_.nobody_averages()) {
    broken_ = true;
    announce({wire::Loss::Kind::server, index,
              Status::error(Code::peer_lost, text + ", and there is no other: " + active_weights_.why_no_other())});
    return;
  }
  // Who averaged nothing before.
  bool others_have_begun = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    others_have_begun = others_have_begun || (before[i] == 0 && active_weights_.weights()[i] > 0);
  }
  announce_epoch(text + "; dedicated servers left: " + active_weights_.dedicated_left() + ". " +
                 (others_have_begun ? "Ranks and servers that averaged nothing do so now"
                                    : "The others go on with what it averaged") +
                 "; see that server's log");
}

bool Coordinator::Impl::decide_shares() {
  return active_weights_.decide([this](std::uint32_t rank) { return is_there(rank); });
}

void Coordinator::Impl::announce_epoch(std::string text) {
  ++epoch_;
  tell_all(Type::epoch, epoch_, wire::encode(wire::Epoch{active_weights_.weights(), std::move(text)}));
}

// --- Servers that come back ---

// Only while every rank is there: a server that starts anew cannot know who has left.
void Coordinator::Impl::try_again(std::uint32_t server, Reconnection& reconnection) {
  if (broken_ || !all_are_there()) {
    reconnection.rest();
    return;
  }
  reconnection.begin_attempt(now_);
  ask_to_reach(0, server, reconnection);
}

Status Coordinator::Impl::hear_reached(const LinkState& from) {
  wire::Reached reached;
  if (Status status = wire::decode(from.payload, reached); !status.ok()) {
    return status;
  }
  const std::uint32_t server = reached.attempt.server;
  const auto found = reconnections_.find(server);
  if (found == reconnections_.end() || reached.attempt.number > found->second.attempt()) {
    return refused("REACHED of a server that was not to be tried");
  }
  Reconnection& reconnection = found->second;
  const bool unreachable = (from.header.flags & wire::flag_unreachable) != 0;
  switch (reconnection.hear(from.rank, reached, unreachable, now_)) {
    case Reconnection::Answer::first:
      for (std::uint32_t rank = 1; rank < config_.size(); ++rank) {
        ask_to_reach(rank, server, reconnection);
      }
      break;
    case Reconnection::Answer::ambiguous:
      if (reconnection.is_first_ambiguity()) {
        say_ambiguous(server, from.rank);
      }
      break;
    case Reconnection::Answer::all:
      if (all_are_there()) {
        bring_back(server, reconnection);
      } else {
        reconnection.rest();
      }
      break;
    default:
      break;
  }
  return {};
}

void Coordinator::Impl::ask_to_reach(std::uint32_t rank, std::uint32_t server, const Reconnection& reconnection) {
  tell(members_[rank], Type::reconnect, 0, wire::encode(wire::Attempt{server, reconnection.attempt()}));
}

// Were it used, ranks would wait for each other at different processes.
void Coordinator::Impl::say_ambiguous(std::uint32_t server, std::uint32_t rank) {
  world_.warn("server " + config_.server_names[server] + " is not used again: " + ranks_text({0, rank}, config_) +
              " reach different processes there, so it is a balancer of load or a name with several machines: name "
              "each server by itself in SHOAL_SERVERS. It is tried further");
}

void Coordinator::Impl::bring_back(std::uint32_t server, Reconnection& reconnection) {
  reconnection.succeed(now_);
  active_weights_.bring_back(server);
  if (decide_shares()) {
    announce_epoch(
        "server " + config_.server_names[server] +
        " is used again: every rank has reached it; dedicated servers left: " + active_weights_.dedicated_left());
  }  // else it is only there again for when others are lost
}

}  // namespace shoal
