// A worker's side of a dedicated server's reconnection (reconnection.h): it connects anew when the coordinator asks,
// and says what it has reached. Nothing is sent on the new links until the epoch that gives the server a weight.
#include <algorithm>
#include <utility>

#include "protocol/worker/impl.h"
#include "wire/epoch.h"

namespace shoal {

using wire::Type;
using worker::refused;

// It may be another process by now, or one that has not heard of several epochs: what connected this worker with it is
// gone.
Status Worker::Impl::receive_reconnect(const LinkState& link) {
  wire::Attempt attempt;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode(payload, attempt); !status.ok()) {
    return status;
  }
  const bool lost = attempt.server < config_.servers() && config_.server_ranks[attempt.server] < 0 &&
                    config_.weights[attempt.server] == 0 && config_.first_lane(attempt.server) == attempt.server;
  if (!lost) {
    return refused("RECONNECT to server " + std::to_string(attempt.server) + ", which is not a lost one");
  }
  if (goodbye_said_) {
    return {};
  }
  for (std::uint32_t lane : config_.lanes_of(attempt.server)) {
    close_server(lane);
    servers_[lane].attempt = attempt.number;
  }
  world_.connect_server(attempt.server, attempt.number);
  return {};
}

void Worker::Impl::attach_returned(LinkId link, std::uint32_t index, std::uint32_t attempt,
                                   const wire::ServerId& process) {
  worker::ServerLink& server = servers_[index];
  if (server.attempt != attempt || server.link || goodbye_said_) {
    world_.close(link);  // too late
    return;
  }
  attach_server(link, index);
  const std::vector<std::uint32_t> lanes = config_.lanes_of(index);
  if (std::all_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) { return servers_[lane].link.has_value(); })) {
    tell_reached({{lanes.front(), attempt}, process}, 0);
  }
}

void Worker::Impl::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  if (servers_[server].attempt != attempt) {
    return;
  }
  for (std::uint32_t lane : config_.lanes_of(server)) {
    close_server(lane);
  }
  tell_reached({{server, attempt}, {}}, wire::flag_unreachable);
}

void Worker::Impl::tell_reached(const wire::Reached& reached, std::uint8_t flags) {
  for (std::uint32_t lane : config_.lanes_of(reached.attempt.server)) {
    servers_[lane].attempt = 0;
  }
  if (coordinator_ && !goodbye_said_) {
    wire::Bytes bytes = wire::encode(reached);
    const wire::Header header{
        .type = Type::reached, .flags = flags, .length = static_cast<std::uint32_t>(bytes.size())};
    world_.send(*coordinator_, header, std::move(bytes), {}, 0);
  }
}

}  // namespace shoal
