// A worker's part in finding circles. It tells the coordinator what this rank waits for, once nothing here can call
// anything before one of those operations is done, and answers whether this rank has called what others wait for. If
// the coordinator finds ranks that wait for each other (coordinator/circles.h), the operations that can never be
// complete fail. docs/protocol/lifecycle.md, Circles.
//
//   unchanged_since ≤ now
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "protocol/call_registry.h"
#include "protocol/worker/environment.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/links.h"
#include "protocol/worker/operation_table.h"

namespace shoal::worker {

class Waits {
 public:
  Waits(const Environment& environment, const OperationTable& operations, const Groups& groups,
        const CallRegistry& calls, const Links& links);

  // watch(): from now on looks every second, at deadline(), what this rank waits for. stop(): no longer.
  void watch() { look_at_ = environment_.now(); }
  void stop() { look_at_ = never; }
  Time deadline() const { return look_at_; }
  void look();

  Status receive_probe(const Frame& frame);
  // `failed`: why open operations can never be complete, by their numbers.
  Status receive_circle(const Frame& frame, std::map<std::uint64_t, Status>& failed);

  void check_invariants() const;

 private:
  std::optional<std::vector<wire::Wait>> described(std::vector<std::uint64_t> handles) const;

  const Environment& environment_;
  const OperationTable& operations_;
  const Groups& groups_;
  const CallRegistry& calls_;
  const Links& links_;
  Time look_at_ = never;
  std::uint64_t seen_changes_ = 0;  // `changes` of WorkerWorld::Waiting at the last look
  Time unchanged_since_ = 0;
  std::uint64_t told_changes_ = 0;  // the coordinator
};

}  // namespace shoal::worker
