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

// What lies between two cumulative weights.
Range between(std::uint64_t total, std::uint64_t before, std::uint64_t after, std::uint64_t whole) {
  constexpr std::uint64_t unit = limits::shard_alignment;
  const std::uint64_t units = (total + unit - 1) / unit;
  return {std::min(share(units, before, whole) * unit, total), std::min(share(units, after, whole) * unit, total)};
}

std::vector<std::uint32_t> servers_in_use(const JobConfig& config) {
  std::vector<std::uint32_t> in_use;
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    if (config.weights[server] > 0) {
      in_use.push_back(server);
    }
  }
  return in_use;
}

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
  const std::vector<std::uint32_t> in_use = servers_in_use(config);
  const std::size_t count = std::clamp<std::uint64_t>(bytes / config.least_shard, 1, in_use.size());
  const auto place = static_cast<std::size_t>(std::find(in_use.begin(), in_use.end(), home) - in_use.begin());
  std::vector<std::uint32_t> servers(count);
  for (std::size_t nth = 0; nth < count; ++nth) {
    servers[nth] = in_use[(place + nth * in_use.size() / count) % in_use.size()];
  }
  std::sort(servers.begin(), servers.end());
  std::uint64_t whole = 0;
  for (const std::uint32_t server : servers) {
    whole += config.weights[server];
  }
  std::vector<Share> shares;
  std::uint64_t before = 0;
  for (const std::uint32_t server : servers) {
    const std::uint64_t after = before + config.weights[server];
    const Range shard = between(bytes, before, after, whole);
    if (!shard.empty() || server == home) {
      shares.push_back({server, shard});
    }
    before = after;
  }
  return shares;
}

std::uint64_t shared_from(const JobConfig& config) {
  return std::uint64_t{config.least_shard} * servers_in_use(config).size();
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
