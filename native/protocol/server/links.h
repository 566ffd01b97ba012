// The links to the workers: the frame that each receives, what is sent to it, and whether its worker has said goodbye.
//
//   rank_of() knows exactly the attached links. A lost worker has no link.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
#include "protocol/machine.h"
#include "protocol/server/epochs.h"
#include "protocol/server/notices.h"

namespace shoal::server {

class Links {
 public:
  Links(std::uint32_t ranks, const Epochs& epochs, ServerWorld& world, BufferPool& pool);

  void attach(LinkId link, std::uint32_t rank);
  std::uint32_t rank_of(LinkId link) const { return ranks_.at(link); }
  // The link has broken.
  void lose(LinkId link);
  bool is_lost(std::uint32_t rank) const { return workers_[rank].lost; }
  // The worker has said LEAVE.
  void leave(std::uint32_t rank) { workers_[rank].left = true; }
  bool has_left(std::uint32_t rank) const { return workers_[rank].left; }

  // The frame that the worker is sending.
  Placement begin_frame(std::uint32_t rank, const wire::Header& header);
  const wire::Header& header(std::uint32_t rank) const { return workers_[rank].header; }
  wire::ConstBytes payload(std::uint32_t rank) const;
  Buffer take_payload(std::uint32_t rank) { return std::move(workers_[rank].payload); }

  // Sends a frame of this epoch. False: the worker's link is gone, and no on_sent will come. A token that is not 0
  // comes back through written().
  bool send(std::uint32_t rank, wire::Header header, wire::Bytes owned = {}, std::span<const std::byte> borrowed = {},
            Token token = 0);
  void grant(std::uint32_t rank, std::uint32_t credit);
  // The driver has written a frame, or its link is gone. To which rank it was sent, and with which token.
  struct Written {
    std::uint32_t rank = 0;
    Token token = 0;
  };
  Written written(Token token);
  // Whether frames to the worker that were sent with a token have not been written.
  bool is_behind(std::uint32_t rank) const { return workers_[rank].unwritten > 0; }

  // All members have their results of the operation with this number of the worker's. The worker is told, soon or at
  // once.
  void tell_settled(std::uint32_t rank, std::uint64_t number, bool at_once);

  // Whether links compete. Both ends of a link switch, because either direction may need it.
  void compete(bool on);
  // The worker has begun its epoch. It is told again to compete, since it may have thrown away what it was told in an
  // earlier epoch.
  void repeat_competing(std::uint32_t rank);

  void begin_epoch() { notices_.clear(); }
  // The time is `now`. tell_overdue(): sends notices that have waited long enough for a frame to go along with.
  void set_time(Time now) { now_ = now; }
  void tell_overdue();
  Time deadline() const { return notices_.deadline(); }

  void check_invariants() const;

 private:
  struct Worker {
    std::optional<LinkId> link;
    bool left = false;
    bool lost = false;
    bool told_to_compete = false;  // ever
    std::size_t unwritten = 0;     // frames with a token
    wire::Header header;
    Buffer payload;
  };

  void tell_to_compete(std::uint32_t rank);
  void send_notices(std::uint32_t rank);

  const Epochs& epochs_;
  ServerWorld& world_;
  BufferPool& pool_;
  Time now_ = 0;
  std::vector<Worker> workers_;  // by rank
  std::unordered_map<LinkId, std::uint32_t> ranks_;
  Notices notices_;
  bool competing_ = false;
};

}  // namespace shoal::server
