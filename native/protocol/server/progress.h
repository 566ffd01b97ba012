// Whom an operation waits for, for workers that ask (docs/protocol/lifecycle.md, Stalls).
//
//   heard(rank) <= now.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "protocol/machine.h"
#include "protocol/server/operation.h"
#include "wire/late.h"

namespace shoal::server {

class Progress {
 public:
  explicit Progress(std::uint32_t ranks) : workers_(ranks) {}

  void hear(std::uint32_t rank, Time now) { workers_[rank].heard = now; }
  void hear_opening(std::uint32_t rank, const wire::Opening& opening);

  // Adds the members that the operation waits for to the answer.
  void add_late(const Operation& operation, Time now, wire::Late& late) const;
  void add_late(std::uint32_t rank, wire::Late::Why why, Time now, wire::Late& late) const;

  void check_invariants(Time now) const;

 private:
  struct Worker {
    Time heard = 0;  // when its last frame came
    Collective last_opened = Collective::none;
    std::string last_name;
  };

  std::vector<Worker> workers_;  // by rank
};

}  // namespace shoal::server
