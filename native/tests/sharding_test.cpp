// Who gets which bytes of an operation: protocol/sharding.h.
#include "protocol/sharding.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "check.h"

namespace shoal {
namespace {

JobConfig config_with(std::vector<std::uint32_t> weights, std::uint32_t small, std::uint32_t least_shard) {
  JobConfig config;
  config.weights = std::move(weights);
  config.small = small;
  config.least_shard = least_shard;
  return config;
}

std::vector<std::uint32_t> servers_of(const std::vector<Share>& shares) {
  std::vector<std::uint32_t> servers;
  for (const Share& share : shares) {
    servers.push_back(share.server);
  }
  return servers;
}

TEST(a_small_operation_has_its_home_alone) {
  const JobConfig config = config_with({1, 1, 1}, 1024, 1);
  CHECK(shares_of(1024, 1, config) == (std::vector<Share>{{1, {0, 1024}}}));
  CHECK(shares_of(0, 2, config) == (std::vector<Share>{{2, {0, 0}}}));
  CHECK_EQ(shares_of(1025, 1, config).size(), 3U);
}

TEST(others_have_as_many_servers_as_leave_each_the_least_shard) {
  const JobConfig config = config_with({1, 1, 1, 1, 1, 1, 1, 1}, 0, 1000);
  CHECK(servers_of(shares_of(64, 3, config)) == (std::vector<std::uint32_t>{3}));
  CHECK(servers_of(shares_of(1999, 3, config)) == (std::vector<std::uint32_t>{3}));
  CHECK(servers_of(shares_of(2000, 3, config)) == (std::vector<std::uint32_t>{3, 7}));
  CHECK(servers_of(shares_of(3000, 3, config)) == (std::vector<std::uint32_t>{0, 3, 5}));
  CHECK(servers_of(shares_of(4000, 3, config)) == (std::vector<std::uint32_t>{1, 3, 5, 7}));
  CHECK_EQ(shares_of(shared_from(config) - 1, 3, config).size(), 7U);
  CHECK_EQ(shares_of(shared_from(config), 3, config).size(), 8U);
  CHECK_EQ(shares_of(1'000'000, 3, config).size(), 8U);
}

// Lanes of one server lie beside each other, so servers that are not all needed are those of different machines.
TEST(as_many_servers_as_machines_are_one_lane_of_each) {
  const JobConfig config = config_with(std::vector<std::uint32_t>(32, 1), 0, 64);
  for (std::uint32_t home = 0; home < 32; ++home) {
    std::vector<std::uint32_t> machines = servers_of(shares_of(8 * 64, home, config));
    for (std::uint32_t& machine : machines) {
      machine /= 4;
    }
    CHECK(machines == (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

TEST(a_short_operation_has_smaller_segments_as_many_as_are_wanted_or_of_the_least_size) {
  JobConfig config = config_with({2, 1}, 1024, 1);
  config.segment = 16384;
  const JobConfig::Window window{16384, 32768};
  CHECK_EQ(config.segment_for(window, 4096, 2048), 16384U);
  config.least_segment = 4096;
  CHECK_EQ(config.segment_for(window, 1024, 1024), 16384U);  // is not cut
  CHECK_EQ(config.segment_for(window, 4096, 2048), 4096U);
  CHECK_EQ(config.segment_for(window, 1 << 20, 100'000), 6272U);  // a sixteenth, aligned
  CHECK_EQ(config.segment_for(window, 1 << 20, 16 * 16384 + 64), 16384U);
  // In proportion at a server whose segments are smaller.
  CHECK_EQ(config.segment_for({8192, 16384}, 4096, 1024), 2048U);
  CHECK(!JobConfig::fills_segments(4096, 15 * 4096));
  CHECK(JobConfig::fills_segments(4096, 15 * 4096 + 64));
  CHECK_EQ(config.segment_for({64, 128}, 4096, 1024), 64U);
}

TEST(servers_without_weight_have_no_share_and_others_theirs_by_weight) {
  const JobConfig config = config_with({0, 6, 0, 6, 3, 0}, 0, 1);
  CHECK(shares_of(15 * 64, 4, config) ==
        (std::vector<Share>{{1, {0, 6 * 64}}, {3, {6 * 64, 12 * 64}}, {4, {12 * 64, 15 * 64}}}));
  // The home is always one, even if nothing is left for it.
  CHECK(shares_of(64, 1, config_with({1, 1, 1000}, 0, 1)) == (std::vector<Share>{{1, {0, 0}}, {2, {0, 64}}}));
}

TEST(every_byte_is_in_one_share_and_an_even_job_is_even_over_all_homes) {
  std::mt19937 random(1);
  const auto below = [&random](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint32_t> weights(1 + below(40));
    const std::uint32_t heaviest = 1 + below(3);
    std::generate(weights.begin(), weights.end(), [&] { return below(heaviest + 1); });
    weights[below(static_cast<std::uint32_t>(weights.size()))] = 1;
    const JobConfig config = config_with(weights, below(2000), 1 + below(5000));
    const std::uint64_t bytes = below(2) == 0 ? below(4000) : below(200'000);
    for (std::uint32_t home = 0; home < weights.size(); ++home) {
      if (weights[home] == 0) {
        continue;
      }
      std::uint64_t end = 0;
      std::uint32_t next = 0;
      bool has_home = false;
      std::uint64_t shared = 0;
      for (const Share& share : shares_of(bytes, home, config)) {
        CHECK(share.server >= next && weights[share.server] > 0);
        CHECK_EQ(share.shard.begin, end);
        CHECK(!share.shard.empty() || share.server == home);
        end = share.shard.end;
        next = share.server + 1;
        has_home = has_home || share.server == home;
        CHECK(share_of(share.server, bytes, home, config) == share.shard);
        shared += share.shard.size();
      }
      CHECK_EQ(end, bytes);
      CHECK(has_home);
      for (std::uint32_t server = 0; server < weights.size(); ++server) {
        shared -= share_of(server, bytes, home, config).size();
      }
      CHECK_EQ(shared, 0U);  // others have none
    }
  }
  const JobConfig even = config_with(std::vector<std::uint32_t>(6, 1), 0, 64);
  std::vector<std::uint64_t> carried(6);
  for (std::uint32_t home = 0; home < 6; ++home) {
    for (const Share& share : shares_of(4 * 64, home, even)) {
      carried[share.server] += share.shard.size();
    }
  }
  CHECK(carried == std::vector<std::uint64_t>(6, 4 * 64));
}

}  // namespace
}  // namespace shoal

RUN_TESTS()
