#include "protocol/keys.h"

#include <algorithm>
#include <numeric>

#include "base/limits.h"
#include "protocol/collectives.h"

namespace shoal {

std::string problem_with_name(const std::string& name) {
  if (name == unnamed || name.size() > limits::name_bytes) {
    return "a name has 1 to " + std::to_string(limits::name_bytes) + " bytes and is not '" + unnamed + "'";
  }
  return {};
}

bool is_of_join(const std::string& name) { return name == join_name || name == joined_name; }

Hash128 group_id(const std::vector<std::uint32_t>& ranks, const std::string& name, std::uint64_t made) {
  Hasher hasher;
  hasher.add(name).add_number(std::uint8_t{0}).add_number(made);
  for (std::uint32_t rank : ranks) {
    hasher.add_number(rank);
  }
  return hasher.digest();
}

Hash128 world_group_id(std::uint32_t size) {
  std::vector<std::uint32_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return group_id(ranks, "", 0);
}

Hash128 operation_key(const Hash128& group, const std::string& name, std::uint32_t occurrence) {
  return Hasher()
      .add(group.bytes)
      .add(name)
      .add_number(std::uint8_t{0})
      .add_number(static_cast<std::uint64_t>(occurrence))
      .digest();
}

bool takes_ring(const JobConfig& config, Collective collective, std::uint64_t bytes) {
  return config.ring && traits_of(collective).shares_results() && bytes > config.small;
}

std::uint32_t home_of(const Hash128& key, const JobConfig& config) {
  const auto in_use = static_cast<std::uint64_t>(
      std::count_if(config.weights.begin(), config.weights.end(), [](std::uint32_t weight) { return weight > 0; }));
  std::uint64_t nth = modulo(key, in_use);
  std::uint32_t index = 0;
  while (config.weights[index] == 0 || nth-- > 0) {
    ++index;
  }
  return index;
}

}  // namespace shoal
