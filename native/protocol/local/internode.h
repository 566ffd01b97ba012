// How all-reduces of a node's ranks go on to the other nodes of the job: what the first rank of the node submits to its
// worker for all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/submission.h"
#include "wire/opening.h"

namespace shoal::local {

// The network waits so much longer than the ranks of a node, so that whoever has not called is named by the group that
// knows it, and not the first rank of its node by the servers.
inline constexpr Time others_first = second;

// Operations among the nodes have the handles of the operations that they are for, marked, so that a worker can tell
// them from the rank's own: what becomes of them is the local group's to hear.
inline constexpr std::uint64_t internode_mark = std::uint64_t{1} << 63U;
inline constexpr bool is_internode(std::uint64_t handle) { return (handle & internode_mark) != 0; }
inline constexpr std::uint64_t internode_handle(std::uint64_t handle) { return handle | internode_mark; }
inline constexpr std::uint64_t own_handle(std::uint64_t handle) { return handle & ~internode_mark; }

// Of one group of ranks.
struct Internode {
  std::uint32_t group = 0;             // of the nodes' first ranks, in their workers; on the first rank
  std::uint32_t ranks = 0;             // that are added in all
  std::uint32_t largest = 0;           // ranks of the largest node
  std::vector<std::uint32_t> weights;  // of the servers: what each averages (protocol/sharding.h)
  std::uint64_t shared_from = 0;       // bytes of an operation that all of them work on
};

// The node's part of an all-reduce that all of its ranks have called: the sum goes from, and comes into, the first
// rank's output.
Submission submission_up(const Submission& called, std::uint32_t occurrence, const Internode& internode);

// Of one that has failed on this node, so that the others need not wait for it. `group`: in the worker.
Submission submission_failed(const wire::Opening& opening, std::uint32_t group, const Status& why);

}  // namespace shoal::local
