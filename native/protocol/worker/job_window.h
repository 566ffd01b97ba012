// The credit of the whole job: what rank 0's worker has told the servers last, and what it measures to decide that. On
// other ranks this class does nothing.
//
//   told credit ≤ JobConfig::most_credit(); measured > 0 only on rank 0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "protocol/congestion_controller.h"
#include "protocol/worker/environment.h"
#include "protocol/worker/links.h"
#include "protocol/worker/server_frames.h"

namespace shoal::worker {

class JobWindow {
 public:
  JobWindow(const Environment& environment, const Links& links, ServerFrames& frames);

  // Tells the servers that have a weight.
  void set(const CongestionController::Setting& setting);
  // Tells the servers of a new epoch the same, if any were ever told.
  void tell_again();

  // Whether this rank measures operations, of which only large ones count.
  bool measures() const { return environment_.rank() == 0; }
  // An operation is measured from now on, or no longer.
  void begin_measuring();
  void end_measuring();
  // So many bytes of a measured operation were answered. Where ranks send for themselves, those of this node are taken
  // to move as much each.
  void answered(std::uint64_t bytes, Senders senders);

  void check_invariants() const;
  std::size_t measured() const { return measured_; }

 private:
  std::uint64_t retransmissions() const;

  const Environment& environment_;
  const Links& links_;
  ServerFrames& frames_;
  CongestionController congestion_;
  const std::size_t node_size_;                        // ranks of this node
  std::size_t measured_ = 0;                           // operations
  std::optional<CongestionController::Setting> told_;  // none: the servers have what `init` found
};

}  // namespace shoal::worker
