// The sockets of a loop: which machine's each is, what is to be written, and whose other host has fallen silent.
//
//   Every socket is watched by the loop's epoll; for room in the kernel's buffer exactly while its link waits for that.
//   A link is listed at most once to be written to, and at most once to be pushed, while the kernel keeps its bytes.
//   While there are sockets, next_look() is a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "drivers/common/follow_ups.h"
#include "drivers/tcp/link.h"
#include "drivers/tcp/socket.h"
#include "protocol/machine.h"

namespace shoal::tcp {

class Sockets final : private Receiver {
 public:
  // Both must outlive it. The events of a socket have its link in `data.u32`.
  Sockets(int epoll, FollowUps& follow_ups) : epoll_(epoll), follow_ups_(follow_ups) {}

  // Throws std::system_error when the kernel cannot watch it; then there is no link, and the socket is closed.
  void add(LinkId link, Machine& machine, Socket socket, const LinkOptions& options);
  std::size_t size() const { return sockets_.size(); }
  std::size_t count(const Machine& machine) const;
  // Rises whenever a socket goes.
  std::uint64_t gone() const { return gone_; }
  // Bytes that were not handed to the kernel yet, or that the peers' kernels have not acknowledged.
  std::size_t undelivered_bytes() const;
  const LinkCounters& traffic() const { return traffic_; }

  struct End {
    Machine* machine = nullptr;
    std::unique_ptr<Link> link;
  };
  // Null: the link is no socket.
  End* find(LinkId link);

  // Actions of machines. close(): false if the link is no socket.
  void send(End& end, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed, Token token);
  void detach(const Machine& machine, Token token);
  bool close(LinkId link);
  void compete(LinkId link, bool on);
  std::uint64_t retransmissions(LinkId link) const;
  // The machine is gone: its sockets are closed.
  void forget(const Machine& machine);
  // Closes all of them, so that the other ends hear of it.
  void clear() { sockets_.clear(); }

  // Parts of a round. look(): checks for silent hosts, when it is time. handle(): an event of epoll. receive(): the
  // follow-up `read`. Then queued frames are written, and bytes that the kernel keeps are pushed.
  void look();
  void handle(LinkId link, std::uint32_t events);
  void receive(LinkId link);
  void flush_listed();
  void push_backlog();
  void end_round() { closed_.clear(); }
  // When there is something to do; 0: at once.
  Time deadline() const;
  // When look() is next.
  Time next_look() const { return sockets_.empty() ? never : next_look_; }

  void check_invariants() const;

 private:
  using Ends = std::unordered_map<LinkId, End>;

  Placement frame_begins(LinkId link, const wire::Header& header) override;
  Buffer spare(std::size_t bytes) override;
  Status frame_ends(LinkId link) override;

  void flush(End& end);
  void list(Link& link);
  void look_within(int peer_timeout_seconds, Time time);
  void lose(LinkId link, Status why);  // by value: it may be the link's own
  Ends::iterator drop(Ends::iterator end);
  void wait_for(Link& link, bool room, int operation);

  const int epoll_;
  FollowUps& follow_ups_;
  Ends sockets_;
  std::vector<std::unique_ptr<Link>> closed_;  // until the end of the round: one of them may be on the stack
  std::vector<LinkId> to_flush_;
  std::vector<LinkId> backlogged_;  // links whose bytes the kernel has taken and not sent
  Time next_push_ = 0;
  Time next_look_ = never;  // for links whose other host is silent
  std::uint64_t gone_ = 0;
  Machine* receiving_ = nullptr;  // whose socket is being read
  LinkCounters traffic_;
};

}  // namespace shoal::tcp
