// Ranks that join (protocol/joining.h), as a part of a plan: who has no more data when; and what servers may tell them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/hash.h"
#include "drivers/sim/network.h"
#include "drivers/sim/random.h"
#include "drivers/sim/workload.h"

namespace shoal::sim {

// All members of some groups join there, each when it has made some of its calls. For plans whose ranks have steps.
// Every operation keeps at least one member that calls it.
void add_joins(Random& random, Plan& plan);

// The operation in which the members of this group wait for each other to join; none: they do not. The next one is that
// after which none of them is joined.
std::optional<std::size_t> join_of(const Plan& plan, std::uint32_t group);

// Watches JOIN and CALLED: whoever has not said that it has joined is told nothing, and nobody is told of a call twice.
class Told {
 public:
  // What is wrong with the frame; empty: nothing. `forgets`: links have been lost, so servers may forget a call that
  // they hear of again.
  std::string sent(const End& from, const wire::Header& header, const Bytes& owned, bool forgets);

 private:
  struct Link {
    std::set<Hash128> groups;  // in which the worker has ever said that it has joined
    // Of which it was told, by group: leaders hear of two calls of one key where nodes differ.
    std::set<std::pair<Hash128, Hash128>> calls;
  };

  std::map<LinkId, Link> links_;  // by the worker's end
};

}  // namespace shoal::sim
