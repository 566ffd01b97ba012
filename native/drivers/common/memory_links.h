// Links in memory, between machines of one process. The other end hears of frames and of a close, in order,
// after the machine's call has returned.
//
//   queue = the follow-ups of links in memory, in the same order
//   an end's other end leads back to it, or is gone
//   borrowed_frames[token] = queued frames with this token that borrow bytes
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

  // The link exists.
  void send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token);
  void detach(const Machine& machine, Token token);
  void close(LinkId link);
  // The machine is gone: its ends are closed, and what it sent is not delivered. Its follow-ups are to be forgotten
  // too.
  void forget(const Machine& machine);

  // FollowUp::Kind::memory has come.
  void carry_out_next();

  void check_invariants() const;

 private:
  struct End {
    Machine* machine = nullptr;
    LinkId other = 0;
  };
  // A frame from `link`, or the news for `link` that its other end was closed.
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
