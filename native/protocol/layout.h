// Who gets which bytes of an operation: docs/protocol.md, section 7, "Where".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/range.h"

namespace shoal {

// The shard of server `index`. The shards of all servers cover [0, total) without a gap; those of equal weight
// differ by at most one alignment unit. Servers of weight 0 get nothing. The weights' sum must be above 0.
Range shard_of(std::uint64_t total, std::span<const std::uint32_t> weights, std::size_t index);

// A member's chunk of a reduce-scatter over `total` bytes in `rows` equal rows.
Range chunk_of(std::uint64_t total, std::uint64_t rows, std::size_t members, std::size_t index);

}  // namespace shoal
