// What every part of a worker may use: the job's configuration in the present epoch, this rank, the time, and the
// world.
//
//   the sum of the weights > 0, one weight a server
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/invariant.h"
#include "protocol/job.h"
#include "protocol/machine.h"

namespace shoal::worker {

class Environment {
 public:
  Environment(JobConfig config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool)
      : config_(std::move(config)), rank_(rank), world_(world), pool_(pool) {}
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  const JobConfig& config() const { return config_; }
  std::uint32_t rank() const { return rank_; }
  // As in a Status, and as in its message.
  std::int32_t own_rank() const { return static_cast<std::int32_t>(rank_); }
  std::string own_name() const { return rank_text(rank_, config_); }
  WorkerWorld& world() const { return world_; }
  BufferPool& pool() const { return pool_; }

  Time now() const { return now_; }
  void set_now(Time now) { now_ = now; }

  std::uint32_t epoch() const { return epoch_; }
  void begin_epoch(std::uint32_t epoch, std::vector<std::uint32_t> weights) {
    epoch_ = epoch;
    config_.weights = std::move(weights);
  }

  void check_invariants() const {
    SHOAL_INVARIANT(config_.weights.size() == config_.server_ranks.size());
    SHOAL_INVARIANT(std::accumulate(config_.weights.begin(), config_.weights.end(), std::uint64_t{0}) > 0);
  }

 private:
  JobConfig config_;
  const std::uint32_t rank_;
  WorkerWorld& world_;
  BufferPool& pool_;
  Time now_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace shoal::worker
