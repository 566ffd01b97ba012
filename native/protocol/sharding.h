// Who gets which bytes of an operation: docs/protocol/lifecycle.md, "Where an operation lives".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/range.h"
#include "protocol/job.h"

namespace shoal {

// The shard of server `index`. The shards of all servers cover [0, total) without a gap; those of equal weight
// differ by at most one alignment unit. Servers of weight 0 get nothing. The weights' sum must be above 0.
Range shard_of(std::uint64_t total, std::span<const std::uint32_t> weights, std::size_t index);

struct Share {
  std::uint32_t server = 0;
  Range shard;

  friend bool operator==(const Share&, const Share&) = default;
};

// The servers that work on an operation that is no gather and does not take the ring, ascending: its home, and the
// others whose shards are not empty. An operation of at most `small` bytes has its home alone. A larger one has at most
// as many servers as leave each `least_shard` bytes on average, spread evenly over all servers.
std::vector<Share> shares_of(std::uint64_t bytes, std::uint32_t home, const JobConfig& config);

// The shard of one server; empty if it has none. (Servers ask this for every opening, so nothing is allocated.)
Range share_of(std::uint32_t server, std::uint64_t bytes, std::uint32_t home, const JobConfig& config);

// From so many bytes on, all servers with a weight above zero work on an operation.
std::uint64_t shared_from(const JobConfig& config);

// A member's chunk of a reduce-scatter over `total` bytes in `rows` equal rows.
Range chunk_of(std::uint64_t total, std::uint64_t rows, std::size_t members, std::size_t index);

}  // namespace shoal
