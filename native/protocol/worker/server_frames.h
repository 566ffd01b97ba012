// Frames from a worker to each server. Each carries the epoch and how many results have come from that server; ahead of
// it goes DROP for the operations that have ended well. If no frame is sent for a while, these are sent alone.
// docs/protocol/lifecycle.md, "The end".
//
//   acknowledged ≤ results, modulo 2^32
//   until the goodbye: news that a server with a link lacks is due after acknowledge_after
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/links.h"

namespace shoal::worker {

class ServerFrames {
 public:
  // How long the news of a result waits for another frame to go along with.
  static constexpr Time acknowledge_after = second / 200;

  ServerFrames(const Environment& environment, const Links& links);

  // Fills in length, epoch and acknowledged. Returns whether it was sent; without a link nothing is.
  bool send(std::uint32_t server, wire::Header header, wire::Bytes owned = {}, std::span<const std::byte> borrowed = {},
            Token token = 0);
  // Tells the server the members of a group, unless it knows them.
  void announce(std::uint32_t server, std::uint32_t number, const Group& group);

  // A RESULT or SIZES has come.
  void count_result(std::uint32_t server);
  // The operation has ended well here. Its home, this server, keeps a record of it until it is told.
  void drop_soon(std::uint32_t home, std::uint64_t number);
  // Tells each server what has been here since `came_by` and no frame has told it.
  void acknowledge(Time came_by);
  // When acknowledge(now - acknowledge_after) has something to tell.
  Time deadline() const { return acknowledge_at_; }
  // Nothing is acknowledged after the goodbye.
  void end() { is_over_ = true; }
  // An epoch has begun after the goodbye, of which servers hear nothing from this worker: nor of anything else.
  void fall_silent() { is_silent_ = true; }

  // A new epoch: all counts begin anew.
  void restart(std::uint32_t server);
  // The link was closed for good. The next one may lead to another process.
  void forget(std::uint32_t server);

  void check_invariants() const;

 private:
  struct Server {
    std::uint32_t results = 0;         // RESULT and SIZES frames received in this epoch, modulo 2^32
    std::uint32_t acknowledged = 0;    // how many of them the server knows of
    Time unknown_since = 0;            // when the first came that it does not know of
    std::vector<std::uint64_t> ended;  // numbers of operations that ended well here, and of which it was not told
    Time ended_since = 0;              // when the first of them ended
    std::unordered_set<std::uint32_t> announced;  // groups

    // Since when it lacks news of this worker.
    Time lacks_since() const;
  };

  void tell_ended(std::uint32_t server);

  const Environment& environment_;
  const Links& links_;
  std::vector<Server> servers_;  // by index
  Time acknowledge_at_ = never;
  bool is_over_ = false;
  bool is_silent_ = false;
};

}  // namespace shoal::worker
