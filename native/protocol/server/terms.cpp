#include "protocol/server/terms.h"

#include <algorithm>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/sharding.h"

namespace shoal::server {

Terms::Terms(const JobConfig& config, std::uint32_t index)
    : config_(config),
      index_(index),
      window_(config.window_of(index)),
      rank_window_(config.window_of(index, Senders::ranks)) {}

bool Terms::is_home_of(const Hash128& key) const { return home_of(key, config_) == index_; }

bool Terms::takes_ring(const wire::Opening& opening) const {
  return shoal::takes_ring(config_, opening.collective, opening.bytes);
}

bool Terms::is_transferred(const wire::Opening& opening) const {
  return is_gather(opening.collective) || takes_ring(opening);
}

bool Terms::lives_at_home(const wire::Opening& opening) const {
  return opening.failed || is_small(opening) || is_transferred(opening);
}

Range Terms::shard_of(const wire::Opening& opening) const {
  return share_of(index_, opening.bytes, home_of(opening.key, config_), config_);
}

std::uint32_t Terms::segment_of(const wire::Opening& opening, Range shard, Senders senders) const {
  return config_.segment_for(window(senders), opening.bytes, shard.size(), senders);
}

std::uint32_t Terms::inline_of(const wire::Opening& opening, Senders senders) const {
  if (is_gather(opening.collective)) {
    return is_small(opening) ? static_cast<std::uint32_t>(opening.bytes) : 0;
  }
  if (takes_ring(opening)) {
    return 0;
  }
  const Range shard = shard_of(opening);
  return config_.inline_of(shard.size(), segment_of(opening, shard, senders));
}

bool Terms::is_complete(const wire::Opening& opening) const {
  if (opening.finished || opening.exchange != 0) {
    return true;
  }
  return !opening.have.empty() && RangeSet(opening.have).contains(shard_of(opening));
}

void Terms::begin_epoch(const std::vector<std::uint32_t>& weights) {
  config_.weights = weights;
  window_ = config_.window_of(index_);
  rank_window_ = config_.window_of(index_, Senders::ranks);
}

void Terms::check_invariants() const {
  const auto has_weight = [](std::uint32_t weight) { return weight > 0; };
  SHOAL_INVARIANT(std::any_of(config_.weights.begin(), config_.weights.end(), has_weight));
  SHOAL_INVARIANT(config_.weights.size() == config_.server_names.size());
  const JobConfig::Window window = config_.window_of(index_);
  SHOAL_INVARIANT(window_.segment == window.segment && window_.credit == window.credit);
  const JobConfig::Window of_rank = config_.window_of(index_, Senders::ranks);
  SHOAL_INVARIANT(rank_window_.segment == of_rank.segment && rank_window_.credit == of_rank.credit);
}

}  // namespace shoal::server
