// The weight of every server at present: the job's own weights while its servers are there, and those of the servers
// that take over for lost ones. docs/protocol/recovery.md, Epochs.
//
// Decisions depend only on who is lost, who has left, and which dedicated servers have taken over before.
//
//   All lanes of a server are lost together. A lost server weighs 0. Any other weighs 0, its weight in `welcome`, or 1
//   after taking over.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "protocol/job.h"

namespace shoal {

class ActiveWeights {
 public:
  explicit ActiveWeights(const JobConfig& config) : config_(config), weights_(config.weights) {}

  // By server, lanes included.
  const std::vector<std::uint32_t>& weights() const { return weights_; }
  // Whether any lane of the server has a weight.
  bool averages(std::uint32_t server) const;
  bool nobody_averages() const;
  bool is_lost(std::uint32_t server) const { return lost_.count(server) > 0; }

  void lose(std::uint32_t server);
  void bring_back(std::uint32_t server);
  // After a loss or a return. `is_there`: whether a rank has neither left nor been lost. Returns whether any weight has
  // changed.
  bool decide(const std::function<bool(std::uint32_t)>& is_there);

  // "1 of 2": how many dedicated servers are left; on each network one that is reached over several.
  std::string dedicated_left() const;
  // The rest of "server s is lost, and there is no other: ".
  std::string why_no_other() const;

  // After decide().
  void check_invariants() const;

 private:
  bool is_dedicated(std::uint32_t server) const { return config_.server_ranks[server] < 0; }
  void call_up(const std::function<bool(std::uint32_t)>& is_there);

  const JobConfig& config_;
  std::vector<std::uint32_t> weights_;
  std::set<std::uint32_t> lost_;  // by index
};

}  // namespace shoal
