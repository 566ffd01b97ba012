// Links between machines of one process, which are memory alone. What is sent, and that an end was closed, the other
// end hears after the present event, in order.
//
//   What is queued = follow-ups of links in memory, in the same order. The other end of an end that is there knows it,
//   or is gone. A token counts as lent as often as frames with it are queued that have bytes which are not theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

#include "drivers/common/follow_ups.h"
#include "protocol/machine.h"

namespace shoal {

class MemoryLinks {
 public:
  explicit MemoryLinks(FollowUps& follow_ups) : follow_ups_(follow_ups) {}

  // Two ends of one link, and whose they are.
  void add(LinkId one, Machine& machine, LinkId other, Machine& other_machine);
  bool has(LinkId link) const { return ends_.contains(link); }
  std::size_t size() const { return ends_.size(); }
  std::size_t count(const Machine& machine) const;
  // Rises whenever an end goes.
  std::uint64_t gone() const { return gone_; }

  // Over a link that there is.
  void send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token);
  void detach(const Machine& machine, Token token);
  void close(LinkId link);
  // The machine is gone: its ends are closed, and what it sent is not delivered. Follow-ups forget it as well.
  void forget(const Machine& machine);

  // FollowUp::Kind::memory has come.
  void carry_out_next();

  void check_invariants() const;

 private:
  struct End {
    Machine* machine = nullptr;
    LinkId other = 0;
  };
  // A frame from the end, or that its other end was closed.
  struct Queued {
    bool is_close = false;
    Machine* machine = nullptr;  // of a frame: the sender
    LinkId link = 0;             // of a frame: the sender's end
    Token token = 0;
    wire::Header header{};
    Bytes owned{};
    std::span<const std::byte> borrowed{};
  };

  void deliver(const Queued& frame);
  void lose(LinkId link, const Status& why);
  void give_back(const Queued& frame);

  FollowUps& follow_ups_;
  std::unordered_map<LinkId, End> ends_;
  std::deque<Queued> queue_;
  std::unordered_map<Token, std::size_t> borrowed_frames_;
  std::uint64_t gone_ = 0;
};

}  // namespace shoal
