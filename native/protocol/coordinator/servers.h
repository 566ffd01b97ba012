// The coordinator's decisions about servers: who goes on when one is lost, and when a lost one is used again.
// docs/protocol/recovery.md. Weights are in active_weights.h, the return of a lost server in reconnection.h.
//
//   A dedicated server that was ever lost has a Reconnection. Reconnection and weights agree whether it is lost. Once
//   no server averages, the job is broken, and stays so. After each event nothing is lost that was not decided on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "protocol/coordinator/active_weights.h"
#include "protocol/coordinator/members.h"
#include "protocol/coordinator/reconnection.h"
#include "protocol/job.h"
#include "protocol/machine.h"
#include "wire/epoch.h"

namespace shoal {

class Servers {
 public:
  Servers(const JobConfig& config, Members& members, CoordinatorWorld& world);

  // A worker's link to the dedicated server has broken. `why`: what follows the server's name in messages.
  void hear_break(std::uint32_t server, std::uint32_t by, const std::string& why, Time now);
  // Whether lanes of another name lead to the same rank's server, over another network, and are not lost.
  bool has_other_lanes(std::uint32_t server) const;
  // A server is lost with all of its lanes. `text` begins with its name. go_on() follows.
  void lose(std::uint32_t server, const std::string& text, Time now);
  // A rank that had left is gone with its process, and so is the server in it. `why`: as above. go_on() follows.
  void lose_of_rank(std::uint32_t rank, const std::string& why, Time now);
  // The others take over the share of all that were lost since: one decision, whatever one cut has cost.
  void go_on();
  // What a worker says of an attempt to reach a lost server.
  Status hear_reached(std::uint32_t rank, const wire::Reached& reached, bool unreachable, Time now);

  void on_time(Time now);
  Time deadline() const;

  void check_invariants() const;

 private:
  std::string text_of(const std::vector<std::pair<std::uint32_t, std::string>>& lost) const;
  // Returns whether any weight has changed.
  bool decide();
  void announce_epoch(std::string text);

  // Only while every rank is there: a server that starts anew does not know who has left.
  void try_again(std::uint32_t server, Reconnection& reconnection, Time now);
  void ask_to_reach(std::uint32_t rank, std::uint32_t server, const Reconnection& reconnection);
  void warn_of_ambiguity(std::uint32_t server, std::uint32_t rank);
  void bring_back(std::uint32_t server, Reconnection& reconnection, Time now);

  const JobConfig& config_;
  Members& members_;
  CoordinatorWorld& world_;
  ActiveWeights active_weights_;
  std::map<std::uint32_t, Reconnection> reconnections_;          // by the index of the server's first lane
  std::vector<std::pair<std::uint32_t, std::string>> lost_now_;  // those that averaged, with their texts, until go_on()
  std::uint32_t epoch_ = 0;
  bool broken_ = false;
};

}  // namespace shoal
