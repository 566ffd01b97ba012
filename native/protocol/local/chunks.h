// How a large operation is cut into the chunks that move through the node's memory.
//
// An operation that goes on to servers is cut where their shards end (protocol/sharding.h), and the chunks of the
// shards take turns. So every server soon has something to sum, and none waits for another's bytes. Shards of different
// sizes have equally many chunks, so that they end together.
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
  // `chunk`: bytes of the largest. `weights`: of the servers. Without weights there is one shard: the operation stays
  // here, or goes only to some servers.
  Chunks(std::uint64_t bytes, std::uint64_t chunk, std::span<const std::uint32_t> weights = {});

  // Cut where these ranges end, which are not empty, in order and apart.
  Chunks(const std::vector<Range>& ranges, std::uint64_t chunk);

  std::uint64_t count() const { return shards_.size() * turns_; }
  // Empty where a shard has no more.
  Range at(std::uint64_t number) const;
  // The number of the chunk that this byte is in.
  std::uint64_t holding(std::uint64_t offset) const;

 private:
  void add(Range range, std::uint64_t chunk);
  void end_together(std::uint64_t chunk);

  struct Shard {
    Range range;
    std::uint64_t chunk;
  };

  std::vector<Shard> shards_;  // none of them empty, in order
  std::uint64_t turns_ = 0;
};

}  // namespace shoal::local
