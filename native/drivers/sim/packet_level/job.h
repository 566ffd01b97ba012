// A job of the product's own machines on the packet_level network: every rank averages so many bytes, beside flows of
// somebody else if there are any, and the report says how long that took and what the network went through.
//
// A node may have several ranks (JobConfig::leaders), each a process with a core of its own, all on one port. They
// average between nodes as `shoal.torch.Hierarchy` has them do: each rank a part of the bytes, in a group of the ranks
// at the same place in their nodes, all at the same time.
//
// Everything is decided by the setup, its seed included: the same setup gives the same report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drivers/sim/packet_level/fabric.h"
#include "drivers/sim/packet_level/processes.h"
#include "protocol/job.h"

namespace shoal::sim::packet_level {

// A flow of somebody else, which always has more to send.
struct Foreign {
  HostId from = 0;
  HostId to = 0;
  std::uint32_t window = 0;  // packets, whatever happens to them (bbr: about twice what the path holds); 0: Reno's
};

struct Setup {
  JobConfig config;       // who averages what, segment, credit
  FabricSettings fabric;  // hosts: one for each node, then one for each dedicated server, in their order
  Costs costs;
  std::vector<Foreign> foreign;
  std::uint64_t bytes = 25'000'000;  // of an all-reduce of float32, or of those of all places
  std::uint32_t rounds = 1;          // all-reduces, one after another
  std::uint32_t together = 1;        // so many all-reduces in each round, all of them submitted at once
  Time start = 0;                    // when the ranks submit; the flows of others begin at 0
  Time spread = 100'000;             // each rank up to so much later
  std::uint64_t seed = 1;            // of that, and of jitter
  Time longest = 600 * second;       // of virtual time
};

// `workers` ranks and `servers` dedicated servers, all with the same link; workers average a part if there are fewer
// servers than workers (docs/design.md). A segment and a credit of so many bytes toward every server of the largest
// weight.
Setup even_setup(std::uint32_t workers, std::uint32_t servers, const HostSettings& host, std::uint32_t segment,
                 std::uint32_t credit);

// The same with so many ranks in place of each worker, each with its part of the worker's window. The first has the
// node's share of averaging.
void put_ranks_on_nodes(Setup& setup, std::uint32_t ranks);

// One foreign flow on every link in each direction: from each host to the next.
void add_foreign_everywhere(Setup& setup, std::uint32_t window);

struct Report {
  std::string failure;              // empty: every rank has its averages
  Time time = 0;                    // from the first submission to the last completion
  std::vector<Time> rounds;         // the same, by round; they add up to it if no rank is ahead of another
  Counts counts;                    // of all flows
  std::uint64_t foreign_bytes = 0;  // that arrived in that time
  std::uint64_t events = 0;
};

Report run(const Setup& setup);

// Bytes a second of a stream on a link of that rate: what one TCP flow carries, so what a benchmark measures as B.
double stream_rate(double rate);

// Seconds that one all-reduce of so many bytes takes at least, on links that are all like the first: T(n, k) of
// docs/design.md.
double bound(const Setup& setup, std::uint64_t bytes);

}  // namespace shoal::sim::packet_level
