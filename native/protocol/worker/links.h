// Which link is what, and the frame that is being received on each.
//
//   every link of a server, a peer or the coordinator is in the table of links as that, and nothing else is in it
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
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
  // One more link to a rank that has one is closed: the loss of either would count as the rank's. Whether it was taken.
  bool attach_peer(LinkId id, std::uint32_t rank);
  Link& at(LinkId id) { return links_.at(id); }
  // The link is gone. What it was.
  Link remove(LinkId id);
  void close_server(std::uint32_t server);

  std::optional<LinkId> server(std::uint32_t index) const { return servers_[index]; }
  std::optional<LinkId> coordinator() const { return coordinator_; }
  bool has_peer(std::uint32_t rank) const { return peers_[rank].link.has_value(); }
  // Asks for a link to the rank, once, if it is this rank's to make: that of the lower one of two.
  void make_peer(std::uint32_t rank);

  // The length of the header is filled in. Nothing is sent where there is no link, nor to the coordinator after
  // silence_coordinator().
  void send_to_peer(std::uint32_t rank, wire::Header header, std::span<const std::byte> borrowed = {},
                    Token token = 0) const;
  void tell_coordinator(wire::Type type, wire::Bytes bytes, std::uint8_t flags = 0) const;
  // This rank has said its last word: what happens to its links means nothing any more.
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
  std::optional<LinkId> coordinator_;
  bool is_silent_ = false;
};

}  // namespace shoal::worker
