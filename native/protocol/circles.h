// Finds ranks that wait for each other in a circle. Part of the coordinator, which tells it what ranks say and sends
// what it wants to be said.
//
// A rank is blocked when nothing there can call anything before one of the operations that it waits for is done. It
// says so (WAITS) when that has been so for a while. Once blocked ranks may be missing from what others wait for, all
// of them are asked (PROBE) which of these operations they have called, and whether they have been blocked ever since.
// Those that have were so all at the same moment, the one between the last WAITS and the first PROBE. Of these the
// ranks are left, one after the other, that wait for an operation which lacks none of those that remain. Who remains
// can never go on: each waits only for operations that lack one who cannot call. That stays true whatever the others
// do, so it may be said at leisure (CIRCLE).
//
// Whoever does not answer within a second counts as not blocked until it says something again. In doubt nothing is
// said.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/job.h"
#include "protocol/machine.h"
#include "wire/waits.h"

namespace shoal {

class Circles {
 public:
  struct Message {
    std::uint32_t rank = 0;
    wire::Type type{};
    wire::Bytes bytes;
  };
  using Messages = std::vector<Message>;

  explicit Circles(const JobConfig& config) : config_(config) {}

  // What is to be sent now. `waits` and `calls` come from the network: they are checked.
  Messages hear(std::uint32_t rank, wire::Waits waits, Time now);
  Messages hear(std::uint32_t rank, const wire::Calls& calls, Time now);
  // It has left or is lost: it is not blocked.
  void forget(std::uint32_t rank) { blocked_.erase(rank); }
  Messages on_time(Time now);
  Time deadline() const { return std::min(until_, ask_at_); }

 private:
  struct Blocked {
    wire::Waits waits;
    bool answered = false;
    bool is_silent = false;    // it has not answered in time
    std::vector<bool> called;  // by operation of the probe
  };
  // By rank; what is left of those that were blocked.
  using Ranks = std::map<std::uint32_t, const Blocked*>;

  bool all_have_answered() const;
  void exclude(Blocked& blocked) const;
  Ranks suspects() const;
  void look(Time now);
  Messages ask(Time now);
  Messages conclude(Time now);
  // Takes away who may go on, as long as there is one. `lacks`: whether this operation may lack that rank.
  template <class Lacks>
  static void keep_stuck(Ranks& ranks, Lacks lacks);
  std::string describe(const Ranks& ranks, const std::map<wire::Call, std::size_t>& numbers) const;
  std::string describe(const wire::Wait& wait) const;

  const JobConfig& config_;
  std::map<std::uint32_t, Blocked> blocked_;  // by rank
  std::map<wire::Call, std::size_t> asked_;   // what is asked about, with its place in the probe
  std::uint32_t round_ = 0;
  Time ask_at_ = never;  // never: nobody is suspected, or they are asked
  Time until_ = never;   // never: nothing is asked
  bool again_ = false;   // somebody has become blocked meanwhile
};

}  // namespace shoal
