// Ranks that will open nothing more here: they have left, or their link broke a minute ago and nobody has said what
// became of them.
//
//   No rank is both waited for and absent. deadline() is the earliest end of such a wait.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/machine.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class Absence {
 public:
  explicit Absence(const Terms& terms) : terms_(terms), absence_(terms.ranks(), Code::ok) {}

  bool is_absent(std::uint32_t rank) const { return absence_[rank] != Code::ok; }
  // Why an operation that the rank has not opened can never be complete.
  Status status(const std::string& operation, std::uint32_t rank) const;

  void leave(std::uint32_t rank) { absence_[rank] = Code::peer_left; }
  // Its link broke. The coordinator decides what that means, and the workers drop what cannot be finished. But if the
  // rank had left and its LEAVE was lost with the link, the coordinator has nothing to decide.
  void lose(std::uint32_t rank, Time now);
  // The next rank that has been waited for long enough. From now on it is absent.
  std::optional<std::uint32_t> next_lost(Time now);
  Time deadline() const { return waited_for_.empty() ? never : waited_for_.begin()->first; }

  void check_invariants() const;

 private:
  const Terms& terms_;
  std::vector<Code> absence_;                            // by rank; ok: it may yet open operations
  std::set<std::pair<Time, std::uint32_t>> waited_for_;  // until when, and the rank
};

}  // namespace shoal::server
