#include "protocol/worker/reconnection.h"

#include <algorithm>
#include <string>

#include "base/invariant.h"

namespace shoal::worker {

using wire::Type;

Reconnection::Reconnection(const Environment& environment, Links& links)
    : environment_(environment), links_(links), attempts_(environment.config().servers()) {}

Status Reconnection::decode(const Frame& frame, wire::Attempt& attempt) const {
  if (Status status = wire::decode(frame.bytes(), attempt); !status.ok()) {
    return status;
  }
  const JobConfig& config = environment_.config();
  const bool is_lost = attempt.server < config.servers() && config.server_ranks[attempt.server] < 0 &&
                       config.weights[attempt.server] == 0 && config.first_lane(attempt.server) == attempt.server;
  return is_lost ? Status{}
                 : refused("RECONNECT to server " + std::to_string(attempt.server) + ", which is not a lost one");
}

void Reconnection::begin(const wire::Attempt& attempt) {
  for (const std::uint32_t lane : environment_.config().lanes_of(attempt.server)) {
    attempts_[lane] = attempt.number;
  }
  environment_.world().connect_server(attempt.server, attempt.number);
}

void Reconnection::attach(LinkId link, std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process) {
  if (attempts_[index] != attempt || links_.server(index)) {
    environment_.world().close(link);
    return;
  }
  links_.attach_server(link, index);
  const std::vector<std::uint32_t> lanes = environment_.config().lanes_of(index);
  if (std::all_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) { return links_.server(lane).has_value(); })) {
    tell({{lanes.front(), attempt}, process}, 0);
  }
}

void Reconnection::give_up(std::uint32_t server) { tell({{server, attempts_[server]}, {}}, wire::flag_unreachable); }

void Reconnection::tell(const wire::Reached& reached, std::uint8_t flags) {
  for (const std::uint32_t lane : environment_.config().lanes_of(reached.attempt.server)) {
    attempts_[lane] = 0;
  }
  links_.tell_coordinator(Type::reached, wire::encode(reached), flags);
}

void Reconnection::check_invariants() const {
  const JobConfig& config = environment_.config();
  for (std::uint32_t server = 0; server < attempts_.size(); ++server) {
    SHOAL_INVARIANT(attempts_[server] == 0 || attempts_[server] == attempts_[config.first_lane(server)]);
  }
}

}  // namespace shoal::worker
