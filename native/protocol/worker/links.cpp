#include "protocol/worker/links.h"

#include <utility>

#include "base/invariant.h"

namespace shoal::worker {

Links::Links(const Environment& environment)
    : environment_(environment), servers_(environment.config().servers()), peers_(environment.config().size()) {}

void Links::attach_server(LinkId id, std::uint32_t server) {
  servers_[server] = id;
  links_[id] = {Link::Kind::server, server, {}};
}

void Links::attach_coordinator(LinkId id) {
  coordinator_.add(id);
  links_[id] = {Link::Kind::coordinator, 0, {}};
}

bool Links::attach_peer(LinkId id, std::uint32_t rank) {
  if (peers_[rank].link) {
    environment_.world().close(id);
    return false;
  }
  peers_[rank].link = id;
  links_[id] = {Link::Kind::peer, rank, {}};
  return true;
}

Link Links::remove(LinkId id) {
  Link link = std::move(links_.extract(id).mapped());
  switch (link.kind) {
    case Link::Kind::server:
      servers_[link.index].reset();
      break;
    case Link::Kind::peer:
      peers_[link.index].link.reset();
      break;
    case Link::Kind::coordinator:
      coordinator_.remove(id);
      break;
  }
  return link;
}

void Links::close_server(std::uint32_t server) {
  if (const std::optional<LinkId> id = std::exchange(servers_[server], std::nullopt)) {
    links_.erase(*id);
    environment_.world().close(*id);
  }
}

void Links::make_peer(std::uint32_t rank) {
  Peer& peer = peers_[rank];
  if (environment_.rank() < rank && !std::exchange(peer.asked_for, true)) {
    environment_.world().connect(rank);
  }
}

void Links::send_to_peer(std::uint32_t rank, wire::Header header, std::span<const std::byte> borrowed,
                         Token token) const {
  header.length = static_cast<std::uint32_t>(borrowed.size());
  if (const std::optional<LinkId> link = peers_[rank].link) {
    environment_.world().send(*link, header, {}, borrowed, token);
  }
}

void Links::tell_coordinator(wire::Type type, const wire::Bytes& bytes, std::uint8_t flags) const {
  if (!is_silent_) {
    const wire::Header header{.type = type, .flags = flags, .length = static_cast<std::uint32_t>(bytes.size())};
    coordinator_.send(environment_.world(), header, bytes);
  }
}

void Links::check_invariants() const {
  for (const auto& [id, link] : links_) {
    switch (link.kind) {
      case Link::Kind::server:
        SHOAL_INVARIANT(servers_.at(link.index) == id);
        break;
      case Link::Kind::peer:
        SHOAL_INVARIANT(peers_.at(link.index).link == id);
        break;
      case Link::Kind::coordinator:
        SHOAL_INVARIANT(coordinator_.has(id));
        break;
    }
  }
  coordinator_.check_invariants();
  std::size_t known = coordinator_.size();
  for (const std::optional<LinkId>& server : servers_) {
    known += server ? 1 : 0;
  }
  for (const Peer& peer : peers_) {
    known += peer.link ? 1 : 0;
  }
  SHOAL_INVARIANT(known == links_.size());
}

}  // namespace shoal::worker
