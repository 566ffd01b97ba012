// The job's configuration in the present epoch, as it concerns this server: its window, its shards, the operations that
// it decides about.
//
//   window() == config().window_of(index()), as that of ranks that send for themselves is; and some server has a weight
//   above 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/range.h"
#include "protocol/job.h"
#include "wire/opening.h"

namespace shoal::server {

class Terms {
 public:
  // `index`: which server of the job this is.
  Terms(const JobConfig& config, std::uint32_t index);

  const JobConfig& config() const { return config_; }  // its weights are those of the epoch
  std::uint32_t index() const { return index_; }
  std::uint32_t ranks() const { return config_.size(); }
  // The window before rank 0's worker changes the credit.
  const JobConfig::Window& window() const { return window_; }
  // For messages.
  const std::string& name() const { return config_.server_names[index_]; }

  bool is_small(const wire::Opening& opening) const { return opening.bytes <= config_.small; }
  // The home decides for all members whether an operation fails.
  bool is_home_of(const Hash128& key) const;
  // Whether its data goes from worker to worker, in blocks or round the ring, so that only sizes come from here.
  bool is_transferred(const wire::Opening& opening) const;
  bool takes_ring(const wire::Opening& opening) const;
  // Whether only its home works on it.
  bool lives_at_home(const wire::Opening& opening) const;

  // This server's shard of the operation, and its segment.
  Range shard_of(const wire::Opening& opening) const;
  std::uint32_t segment_of(const wire::Opening& opening, Range shard, Senders senders) const;
  // That of an operation that is not short.
  std::uint32_t full_segment(Senders senders) const { return window(senders).segment; }
  // Bytes of inline data that may come with the opening.
  std::uint32_t inline_of(const wire::Opening& opening, Senders senders) const;
  // Whether the member with this opening has everything that it gets from here. (Then it knows that all have opened
  // it.)
  bool is_complete(const wire::Opening& opening) const;

  void begin_epoch(const std::vector<std::uint32_t>& weights);

  void check_invariants() const;

 private:
  const JobConfig::Window& window(Senders senders) const { return senders == Senders::nodes ? window_ : rank_window_; }

  JobConfig config_;
  std::uint32_t index_;
  JobConfig::Window window_;
  JobConfig::Window rank_window_;  // of ranks that send for themselves
};

}  // namespace shoal::server
