// How a large operation is cut into the chunks that move through the node's memory.
//
// What goes on to servers is cut where their shards end (protocol/sharding.h), and the shards' chunks take turns: every
// server soon has something to add, and none waits for what belongs to another. Shards of different sizes have as many
// chunks each, so that they end together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/range.h"

namespace shoal::local {

class Chunks {
 public:
  Chunks() = default;
  // `chunk`: bytes of the largest. `weights`: of the servers; none: the operation stays here, or goes to some servers
  // only: one shard.
  Chunks(std::uint64_t bytes, std::uint64_t chunk, std::span<const std::uint32_t> weights = {});

  std::uint64_t count() const { return shards_.size() * turns_; }
  // Empty where a shard has no more.
  Range at(std::uint64_t number) const;
  // The number of the chunk that this byte is in.
  std::uint64_t holding(std::uint64_t offset) const;

 private:
  struct Shard {
    Range range;
    std::uint64_t chunk;
  };

  std::vector<Shard> shards_;  // none of them empty, in order
  std::uint64_t turns_ = 0;
};

}  // namespace shoal::local
