#include "protocol/layout.h"

#include <algorithm>
#include <numeric>

#include "base/limits.h"

namespace shoal {

namespace {

// floor(units * part / whole) without overflow.
std::uint64_t share(std::uint64_t units, std::uint64_t part, std::uint64_t whole) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(units) * part / whole);
}

}  // namespace

Range shard_of(std::uint64_t total, std::span<const std::uint32_t> weights, std::size_t index) {
  constexpr std::uint64_t unit = limits::shard_alignment;
  const std::uint64_t whole = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  const std::uint64_t before =
      std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(index), std::uint64_t{0});
  const std::uint64_t units = (total + unit - 1) / unit;
  const std::uint64_t begin = share(units, before, whole) * unit;
  const std::uint64_t end = share(units, before + weights[index], whole) * unit;
  return {std::min(begin, total), std::min(end, total)};
}

Range chunk_of(std::uint64_t total, std::uint64_t rows, std::size_t members, std::size_t index) {
  if (rows == 0) {
    return {0, 0};
  }
  const std::uint64_t row = total / rows;
  const std::uint64_t each = rows / members;
  const std::uint64_t more = rows % members;
  const std::uint64_t first = each * index + std::min<std::uint64_t>(index, more);
  const std::uint64_t count = each + (index < more ? 1 : 0);
  return {first * row, (first + count) * row};
}

}  // namespace shoal
