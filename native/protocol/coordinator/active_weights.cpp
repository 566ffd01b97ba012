#include "protocol/coordinator/active_weights.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal {

bool ActiveWeights::averages(std::uint32_t server) const {
  const std::vector<std::uint32_t> lanes = config_.lanes_of(server);
  return std::any_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) { return weights_[lane] > 0; });
}

bool ActiveWeights::nobody_averages() const {
  return std::all_of(weights_.begin(), weights_.end(), [](std::uint32_t weight) { return weight == 0; });
}

void ActiveWeights::lose(std::uint32_t server) {
  for (std::uint32_t lane : config_.lanes_of(server)) {
    lost_.insert(lane);
  }
}

void ActiveWeights::bring_back(std::uint32_t server) {
  for (std::uint32_t lane : config_.lanes_of(server)) {
    lost_.erase(lane);
  }
}

// A dedicated server that has taken over keeps its weight: workers would close their links to it.
bool ActiveWeights::decide(const std::function<bool(std::uint32_t)>& is_there) {
  const std::vector<std::uint32_t> before = weights_;
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    const bool keeps = config_.weights[i] == 0 && is_dedicated(i);
    weights_[i] = lost_.count(i) > 0 ? 0 : keeps ? before[i] : config_.weights[i];
  }
  if (nobody_averages()) {
    call_up(is_there);
  }
  return weights_ != before;
}

// Idle servers and lanes average now, dedicated ones before those of ranks. Rank 0's process serves until the end of
// the job; another process that averages nothing may end when its rank has left.
void ActiveWeights::call_up(const std::function<bool(std::uint32_t)>& is_there) {
  const std::vector<bool> linked = config_.linked_ranks();
  const auto may_average = [&](std::uint32_t server) {
    const std::int32_t rank = config_.server_ranks[server];
    const bool has_process = rank <= 0 || is_there(static_cast<std::uint32_t>(rank));
    return lost_.count(server) == 0 && has_process && (rank < 0 || linked[static_cast<std::size_t>(rank)]);
  };
  for (const bool dedicated : {true, false}) {
    for (std::uint32_t i = 0; i < config_.servers(); ++i) {
      if (is_dedicated(i) == dedicated && may_average(i)) {
        weights_[i] = 1;
      }
    }
    if (!nobody_averages()) {
      return;
    }
  }
}

std::string ActiveWeights::dedicated_left() const {
  std::set<std::string> all;
  std::set<std::string> left;
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    if (is_dedicated(i)) {
      all.insert(config_.server_names[i]);
      if (lost_.count(i) == 0) {
        left.insert(config_.server_names[i]);
      }
    }
  }
  const std::uint32_t networks = config_.networks;
  return std::to_string(left.size()) + " of " + std::to_string(all.size()) +
         (networks > 1 ? " (each counts on " + std::to_string(networks) + " networks)" : "");
}

std::string ActiveWeights::why_no_other() const {
  bool ranks_average = config_.standby;
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    ranks_average = ranks_average || (!is_dedicated(i) && config_.weights[i] > 0);
  }
  return ranks_average ? "no rank is left whose server all others reach. See that server's log, and which ranks cannot "
                         "reach each other; then start the job again"
                       : "SHOAL_COLOCATED=never keeps ranks from averaging in its place. See that server's log, then "
                         "start the job again, with more servers or without SHOAL_COLOCATED=never";
}

void ActiveWeights::check_invariants() const {
  SHOAL_INVARIANT(weights_.size() == config_.servers());
  for (std::uint32_t i = 0; i < config_.servers(); ++i) {
    SHOAL_INVARIANT(is_lost(i) == is_lost(config_.first_lane(i)));
    SHOAL_INVARIANT(!is_lost(i) || weights_[i] == 0);
    SHOAL_INVARIANT(weights_[i] <= 1 || weights_[i] == config_.weights[i]);
  }
}

}  // namespace shoal
