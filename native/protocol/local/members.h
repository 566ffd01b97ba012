// The ranks of a local group, and their names in messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/job.h"

namespace shoal::local {

class Members {
 public:
  // `ranks`: ranks of the job by place, which is the index in the local group. `config` must outlive it.
  Members(const JobConfig& config, std::vector<std::uint32_t> ranks) : config_(config), ranks_(std::move(ranks)) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::uint32_t rank_of(std::uint32_t place) const { return ranks_[place]; }
  std::optional<std::uint32_t> place_of(std::uint32_t rank) const {
    const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
    return found == ranks_.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found - ranks_.begin()));
  }
  const JobConfig& config() const { return config_; }

  std::string name_of(std::uint32_t place) const { return rank_text(ranks_[place], config_); }
  std::string names_of(const std::vector<std::uint32_t>& places) const {
    std::vector<std::uint32_t> named;
    named.reserve(places.size());
    for (const std::uint32_t place : places) {
      named.push_back(ranks_[place]);
    }
    return ranks_text(named, config_);
  }
  // The error of an operation that needs this rank, which has left.
  Status left_status(const std::string& operation, std::uint32_t place) const {
    return Status::error(Code::peer_left,
                         "'" + operation + "' needs " + name_of(place) + ", which has left the job normally",
                         static_cast<std::int32_t>(ranks_[place]));
  }

 private:
  const JobConfig& config_;
  const std::vector<std::uint32_t> ranks_;
};

}  // namespace shoal::local
