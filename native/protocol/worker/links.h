// What is at the other end of each link, and the frame that is being received on it.
//
//   the table of links has exactly the links of servers, peers and the coordinator, each as what it is
//   the coordinator has a link in each network over which lanes are spread (protocol/twin_links.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
#include "protocol/twin_links.h"
#include "protocol/worker/environment.h"

namespace shoal::worker {

struct Frame {
  wire::Header header;
  Buffer payload;

  wire::ConstBytes bytes() const { return {payload.data(), payload.size()}; }
};

struct Link {
  enum class Kind { server, coordinator, peer };
  Kind kind = Kind::server;
  std::uint32_t index = 0;  // of the server; the rank of the peer
  Frame frame;
};

class Links {
 public:
  explicit Links(const Environment& environment);

  void attach_server(LinkId id, std::uint32_t server);
  void attach_coordinator(LinkId id);
  // A second link to the same rank is closed, since its loss would count as the rank's. Returns whether the link was
  // taken.
  bool attach_peer(LinkId id, std::uint32_t rank);
  Link& at(LinkId id) { return links_.at(id); }
  // The link is gone. Returns what it was.
  Link remove(LinkId id);
  void close_server(std::uint32_t server);

  std::optional<LinkId> server(std::uint32_t index) const { return servers_[index]; }
  const TwinLinks& coordinator() const { return coordinator_; }
  // A frame of the coordinator's has come whole. False: another link has brought it before.
  bool take_from_coordinator(LinkId id) { return coordinator_.take(id); }
  bool has_peer(std::uint32_t rank) const { return peers_[rank].link.has_value(); }
  // Asks for a link to the rank, once, if this is the lower rank of the two, which makes the link.
  void make_peer(std::uint32_t rank);

  // Fill in the header's length. Nothing is sent without a link, nor to the coordinator after silence_coordinator().
  void send_to_peer(std::uint32_t rank, wire::Header header, std::span<const std::byte> borrowed = {},
                    Token token = 0) const;
  void tell_coordinator(wire::Type type, const wire::Bytes& bytes, std::uint8_t flags = 0) const;
  // This rank has said goodbye: nothing that happens to its links is reported.
  void silence_coordinator() { is_silent_ = true; }

  void check_invariants() const;

 private:
  struct Peer {
    std::optional<LinkId> link;
    bool asked_for = false;
  };

  const Environment& environment_;
  std::unordered_map<LinkId, Link> links_;
  std::vector<std::optional<LinkId>> servers_;  // by index
  std::vector<Peer> peers_;                     // by rank
  TwinLinks coordinator_;
  bool is_silent_ = false;
};

}  // namespace shoal::worker
