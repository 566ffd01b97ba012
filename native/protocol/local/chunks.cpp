#include "protocol/local/chunks.h"

#include <algorithm>

#include "base/limits.h"
#include "protocol/sharding.h"

namespace shoal::local {

namespace {

std::uint64_t divided(std::uint64_t what, std::uint64_t by) { return (what + by - 1) / by; }

}  // namespace

Chunks::Chunks(std::uint64_t bytes, std::uint64_t chunk, std::span<const std::uint32_t> weights) {
  constexpr std::uint32_t alone[] = {1};
  const std::span<const std::uint32_t> shards = weights.empty() ? alone : weights;
  for (std::size_t index = 0; index < shards.size(); ++index) {
    if (const Range range = shard_of(bytes, shards, index); !range.empty()) {
      add(range, chunk);
    }
  }
  end_together(chunk);
}

Chunks::Chunks(const std::vector<Range>& ranges, std::uint64_t chunk) {
  for (const Range& range : ranges) {
    add(range, chunk);
  }
  end_together(chunk);
}

void Chunks::add(Range range, std::uint64_t chunk) {
  shards_.push_back({range, chunk});
  turns_ = std::max(turns_, divided(range.size(), chunk));
}

void Chunks::end_together(std::uint64_t chunk) {
  for (Shard& shard : shards_) {
    if (divided(shard.range.size(), chunk) < turns_) {
      shard.chunk = divided(divided(shard.range.size(), turns_), limits::shard_alignment) * limits::shard_alignment;
    }
  }
}

Range Chunks::at(std::uint64_t number) const {
  const auto& [range, chunk] = shards_[number % shards_.size()];
  const std::uint64_t begin = range.begin + number / shards_.size() * chunk;
  return begin < range.end ? Range{begin, std::min(begin + chunk, range.end)} : Range{};
}

std::uint64_t Chunks::holding(std::uint64_t offset) const {
  const auto shard = std::find_if(shards_.begin(), shards_.end(),
                                  [offset](const Shard& candidate) { return offset < candidate.range.end; });
  const auto index = static_cast<std::uint64_t>(shard - shards_.begin());
  return (offset - shard->range.begin) / shard->chunk * shards_.size() + index;
}

}  // namespace shoal::local
