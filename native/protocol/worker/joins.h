// The groups in which this rank has joined. The servers know it, so that homes tell it what others call there
// (docs/protocol/lifecycle.md, "Joined ranks").
//
//   the servers with a share have been told of each group, in this epoch
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/hash.h"
#include "protocol/worker/environment.h"
#include "protocol/worker/goodbye.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/server_frames.h"

namespace shoal::worker {

class Joins {
 public:
  Joins(const Environment& environment, const Groups& groups, const Goodbye& goodbye, ServerFrames& frames)
      : environment_(environment), groups_(groups), goodbye_(goodbye), frames_(frames) {}

  // `as`: the group in which this rank calls what it hears of.
  void begin(std::uint32_t group, std::uint32_t as);
  void end(std::uint32_t group);
  // A new epoch has begun.
  void tell_again();

  // Where this rank calls what was called in the group with this id; none: it has not joined there.
  struct Joined {
    std::uint32_t group = 0;
    std::uint32_t as = 0;
  };
  std::optional<Joined> find(const Hash128& group) const;

  void check_invariants() const;

 private:
  void tell(std::uint32_t group, std::uint8_t flags) const;

  const Environment& environment_;
  const Groups& groups_;
  const Goodbye& goodbye_;
  ServerFrames& frames_;
  std::map<std::uint32_t, std::uint32_t> joined_;  // by group: as which
};

}  // namespace shoal::worker
