// What a worker says to each server: its frames, with the epoch and with how many results have come from there, and,
// ahead of them, which operations have ended well. When nothing else is said for a while, that is said by itself.
// docs/protocol/lifecycle.md, "The end" and "The end".
//
//   acknowledged ≤ results, modulo 2^32
//   what a server with a link does not know yet is due after acknowledge_after, until the goodbye
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
  // How long a server may not know that a result is here, unless something else is sent to it.
  static constexpr Time acknowledge_after = second / 200;

  ServerFrames(const Environment& environment, const Links& links);

  // Fills in length, epoch and acknowledged. Nothing is sent where there is no link. Whether it was sent.
  bool send(std::uint32_t server, wire::Header header, wire::Bytes owned = {}, std::span<const std::byte> borrowed = {},
            Token token = 0);
  // The members of a group, unless that server knows them.
  void announce(std::uint32_t server, std::uint32_t number, const Group& group);

  // A RESULT or SIZES has come.
  void count_result(std::uint32_t server);
  // The operation has ended well here, and this server, its home, keeps a record of it until it knows.
  void drop_soon(std::uint32_t home, std::uint64_t number);
  // Says what had to be said by then, where no frame has said it since.
  void acknowledge(Time came_by);
  // When acknowledge(now - acknowledge_after) is due.
  Time deadline() const { return acknowledge_at_; }
  // Nothing is acknowledged after the goodbye.
  void end() { is_over_ = true; }

  // A new epoch: all counts begin anew.
  void restart(std::uint32_t server);
  // The link was closed for good: another process may be there when it is made again.
  void forget(std::uint32_t server);

  void check_invariants() const;

 private:
  struct Server {
    std::uint32_t results = 0;         // RESULT and SIZES frames received in this epoch, modulo 2^32
    std::uint32_t acknowledged = 0;    // of these, as the server knows
    Time unknown_since = 0;            // when the first came that it does not know of
    std::vector<std::uint64_t> ended;  // numbers of those that have ended well here, which it has not been told
    Time ended_since = 0;              // when the first did
    std::unordered_set<std::uint32_t> announced;  // groups

    // Since when it lacks something that this worker knows.
    Time lacks_since() const;
  };

  void tell_ended(std::uint32_t server);

  const Environment& environment_;
  const Links& links_;
  std::vector<Server> servers_;  // by index
  Time acknowledge_at_ = never;
  bool is_over_ = false;
};

}  // namespace shoal::worker
