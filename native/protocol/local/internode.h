// How all-reduces, reduce-scatters and all-gathers of a node's ranks go on to the other nodes of the job: what the
// leader of the node submits to its worker for all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/job.h"
#include "protocol/local/crossing.h"
#include "protocol/submission.h"
#include "wire/opening.h"

namespace shoal::local {

// The network waits so much longer than the ranks of a node. So a rank that has not called is named by its local group,
// which knows it, and servers do not name its leader instead.
inline constexpr Time others_first = second;

// An operation among the nodes has the handle of the local operation that it serves, with a mark. So the events of
// marked handles go to the local group, and those of other handles to the program.
inline constexpr std::uint64_t internode_mark = std::uint64_t{1} << 63U;
inline constexpr bool is_internode(std::uint64_t handle) { return (handle & internode_mark) != 0; }
inline constexpr std::uint64_t internode_handle(std::uint64_t handle) { return handle | internode_mark; }
inline constexpr std::uint64_t own_handle(std::uint64_t handle) { return handle & ~internode_mark; }

// How one group of ranks goes on to the other nodes.
struct Internode {
  std::uint32_t group = 0;               // number of the leaders' group in the worker; on a leader
  std::uint32_t ranks = 0;               // ranks that contribute, on all nodes
  std::uint32_t largest = 0;             // ranks of the largest node
  std::vector<std::uint32_t> weights;    // of the servers (protocol/sharding.h)
  std::uint64_t shared_from = 0;         // from so many bytes on, all servers work on an operation
  std::vector<std::uint32_t> nodes{};    // by member: the index of its leader in the leaders' group
  std::uint32_t count = 0;               // of nodes
  std::vector<std::uint32_t> leaders{};  // ranks of the job, by the same index
};

// What a group of all ranks is to the other nodes, but for its leaders' group. None: this node is the whole job.
// `leaders`: the first rank of each node, in the order in which their nodes appear in `ranks`.
std::optional<Internode> internode_of(const JobConfig& config, const std::vector<std::uint32_t>& ranks,
                                      std::vector<std::uint32_t>& leaders);

// The node's part of an all-reduce that all of its ranks have called. The node's sum lies in the leader's output,
// and the result comes there.
Submission submission_up(const Submission& called, std::uint32_t occurrence, const Internode& internode);

// The same of a reduce-scatter: `array` is the node's sum, as it crosses (crossing.h). This node's row comes back in
// its place.
Submission scatter_up(const Submission& called, std::uint32_t occurrence, const Internode& internode,
                      const Crossing& crossing, std::byte* array);

// An all-gather is two operations among the leaders. In the first each tells how long its node's blocks are, and adds
// them if they are short. The second, only if some are not, brings all blocks: `array` is the crossing array, in which
// this node's come first.
Submission sizes_up(const Submission& called, std::uint32_t occurrence, const Internode& internode, ConstBytes told);
Submission gather_up(const Submission& called, std::uint32_t occurrence, const Internode& internode,
                     const Crossing& crossing, std::uint32_t own_node, std::byte* array);

// Tells the other nodes that an operation has failed on this node. `group`: its number in the worker.
Submission submission_failed(const wire::Opening& opening, std::uint32_t group, const Status& why);

}  // namespace shoal::local
