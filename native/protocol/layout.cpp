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

std::vector<Share> shares_of(std::uint64_t bytes, std::uint32_t home, const JobConfig& config) {
  if (bytes <= config.small) {
    return {{home, {0, bytes}}};
  }
  std::vector<std::uint32_t> in_use;
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    if (config.weights[server] > 0) {
      in_use.push_back(server);
    }
  }
  const std::size_t count = std::clamp<std::uint64_t>(bytes / config.least_shard, 1, in_use.size());
  const auto place = static_cast<std::size_t>(std::find(in_use.begin(), in_use.end(), home) - in_use.begin());
  std::vector<std::uint32_t> servers(count);
  for (std::size_t nth = 0; nth < count; ++nth) {
    servers[nth] = in_use[(place + nth * in_use.size() / count) % in_use.size()];
  }
  std::sort(servers.begin(), servers.end());
  std::vector<std::uint32_t> weights(count);
  std::transform(servers.begin(), servers.end(), weights.begin(),
                 [&config](std::uint32_t server) { return config.weights[server]; });
  std::vector<Share> shares;
  for (std::size_t nth = 0; nth < count; ++nth) {
    const Range shard = shard_of(bytes, weights, nth);
    if (!shard.empty() || servers[nth] == home) {
      shares.push_back({servers[nth], shard});
    }
  }
  return shares;
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
