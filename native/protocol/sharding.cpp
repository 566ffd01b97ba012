#include "protocol/sharding.h"

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

// What lies between two cumulative weights.
Range between(std::uint64_t total, std::uint64_t before, std::uint64_t after, std::uint64_t whole) {
  constexpr std::uint64_t unit = limits::shard_alignment;
  const std::uint64_t units = (total + unit - 1) / unit;
  return {std::min(share(units, before, whole) * unit, total), std::min(share(units, after, whole) * unit, total)};
}

std::size_t in_use(std::span<const std::uint32_t> weights) {
  return static_cast<std::size_t>(
      std::count_if(weights.begin(), weights.end(), [](std::uint32_t weight) { return weight > 0; }));
}

// The servers that work on an operation of more than `small` bytes: of those in use, `count` that are evenly spread
// over their places, the home among them.
class Chosen {
 public:
  Chosen(std::uint64_t bytes, std::uint32_t home, const JobConfig& config)
      : config_(config),
        in_use_(in_use(config.weights)),
        count_(std::clamp<std::uint64_t>(bytes / config.least_shard, 1, in_use_)),
        home_place_(in_use(std::span(config.weights).first(home))) {}

  // Calls `visit` with each of them, in ascending order.
  template <class Visit>
  void each(Visit visit) const {
    std::size_t place = 0;
    for (std::uint32_t server = 0; server < config_.servers(); ++server) {
      if (config_.weights[server] > 0 && has(place++)) {
        visit(server);
      }
    }
  }

 private:
  // From the home on, the nth of them is floor(n * in_use / count) places further.
  bool has(std::size_t place) const {
    const std::size_t further = (place + in_use_ - home_place_) % in_use_;
    const std::size_t nth = (further * count_ + in_use_ - 1) / in_use_;
    return nth * in_use_ / count_ == further;
  }

  const JobConfig& config_;
  const std::size_t in_use_;
  const std::size_t count_;
  const std::size_t home_place_;
};

}  // namespace

Range shard_of(std::uint64_t total, std::span<const std::uint32_t> weights, std::size_t index) {
  const std::uint64_t whole = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  const std::uint64_t before =
      std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(index), std::uint64_t{0});
  return between(total, before, before + weights[index], whole);
}

std::vector<Share> shares_of(std::uint64_t bytes, std::uint32_t home, const JobConfig& config) {
  if (bytes <= config.small) {
    return {{home, {0, bytes}}};
  }
  const Chosen chosen(bytes, home, config);
  std::uint64_t whole = 0;
  chosen.each([&](std::uint32_t server) { whole += config.weights[server]; });
  std::vector<Share> shares;
  std::uint64_t before = 0;
  chosen.each([&](std::uint32_t server) {
    const std::uint64_t after = before + config.weights[server];
    const Range shard = between(bytes, before, after, whole);
    if (!shard.empty() || server == home) {
      shares.push_back({server, shard});
    }
    before = after;
  });
  return shares;
}

Range share_of(std::uint32_t server, std::uint64_t bytes, std::uint32_t home, const JobConfig& config) {
  if (bytes <= config.small) {
    return server == home ? Range{0, bytes} : Range{};
  }
  std::uint64_t before = 0;
  std::uint64_t own = 0;
  std::uint64_t whole = 0;
  Chosen(bytes, home, config).each([&](std::uint32_t one) {
    before += one < server ? config.weights[one] : 0;
    own += one == server ? config.weights[one] : 0;
    whole += config.weights[one];
  });
  return own > 0 ? between(bytes, before, before + own, whole) : Range{};
}

std::uint64_t shared_from(const JobConfig& config) {
  return std::uint64_t{config.least_shard} * in_use(config.weights);
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
