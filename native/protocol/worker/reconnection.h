// A worker's side of a dedicated server's reconnection (docs/protocol/recovery.md): it connects anew when the
// coordinator asks, and says what it has reached. Nothing is sent on the new links until the epoch that gives the
// server a weight.
//
//   all lanes of a server are at the same attempt; 0: at none
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/links.h"
#include "wire/epoch.h"

namespace shoal::worker {

class Reconnection {
 public:
  Reconnection(const Environment& environment, Links& links);

  // RECONNECT: which lost server is to be reached.
  Status decode(const Frame& frame, wire::Attempt& attempt) const;
  // Begins, once the server's links are closed.
  void begin(const wire::Attempt& attempt);
  // A link of this attempt. If the attempt is over, the link is closed. With the link of the last lane the server is
  // reached.
  void attach(LinkId link, std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process);
  // The attempt is over: the server cannot be reached, or a link to it broke.
  void give_up(std::uint32_t server);
  // The present attempt at reaching that server, 0: none.
  std::uint32_t attempt_at(std::uint32_t server) const { return attempts_[server]; }

  void check_invariants() const;

 private:
  void tell(const wire::Reached& reached, std::uint8_t flags);

  const Environment& environment_;
  Links& links_;
  std::vector<std::uint32_t> attempts_;  // by server
};

}  // namespace shoal::worker
