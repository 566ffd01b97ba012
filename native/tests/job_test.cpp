// What a job's configuration makes of its limits at each server.
#include "protocol/job.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "check.h"

namespace shoal {
namespace {

constexpr std::uint32_t kib = 1024;
constexpr std::uint32_t segment = 16 * kib;

// `workers` own servers and as many dedicated ones behind them as there are more weights.
JobConfig config_with(std::size_t workers, std::vector<std::uint32_t> weights) {
  JobConfig config;
  config.segment = segment;
  config.credit = 2 * segment;
  for (std::size_t server = 0; server < weights.size(); ++server) {
    config.server_ranks.push_back(server < workers ? static_cast<std::int32_t>(server) : -1);
  }
  config.weights = std::move(weights);
  return config;
}

TEST(equal_servers_have_the_windows_of_the_job) {
  for (const std::size_t workers : {0U, 2U}) {
    const JobConfig config = config_with(workers, {7, 7});
    CHECK_EQ(config.segment_of(1), segment);
    CHECK_EQ(config.window_of(1).credit, 2 * segment);
    CHECK_EQ(config.credit_of(1, 5 * segment), 5 * segment);
  }
}

TEST(slower_servers_have_segments_in_proportion_and_as_many) {
  for (const std::size_t workers : {0U, 2U}) {
    const JobConfig config = config_with(workers, {1000, 487});
    CHECK_EQ(config.segment_of(1), 8000U);  // 7979.008, and up to a multiple of 64
    CHECK_EQ(config.window_of(1).credit, 16000U);
    CHECK_EQ(config.credit_of(1, segment), 8000U);
  }
}

TEST(ranks_that_send_for_themselves_have_windows_of_their_own_in_the_same_proportions) {
  JobConfig config = config_with(0, {1000, 487});
  CHECK_EQ(config.segment_of(1, Senders::ranks), config.segment_of(1));  // nothing else is known
  config.rank_segment = segment / 4;
  config.rank_credit = segment / 2;
  CHECK_EQ(config.window_of(0, Senders::ranks).segment, segment / 4);
  CHECK_EQ(config.window_of(0, Senders::ranks).credit, segment / 2);
  CHECK_EQ(config.window_of(1, Senders::ranks).segment, 2048U);  // 1994.752, and up to a multiple of 64
  CHECK_EQ(config.window_of(1, Senders::ranks).credit, 4096U);
  CHECK_EQ(config.window_of(0).credit, 2 * segment);
  config.least_segment = 1024;
  const JobConfig::Window window = config.window_of(0, Senders::ranks);
  CHECK_EQ(config.segment_for(window, 1 << 20, 1024, Senders::ranks), 1024U);
  CHECK_EQ(config.segment_for(window, 1 << 20, 1 << 20, Senders::ranks), segment / 4);
}

TEST(a_rank_has_no_larger_window_than_its_node) {
  JobConfig config = config_with(0, {1, 1});
  config.hosts = {"a", "b"};
  config.server_names = {"s", "t"};
  CHECK_EQ(problem_with(config), "");
  config.rank_segment = config.rank_credit = segment / 2;
  CHECK_EQ(problem_with(config), "");
  config.rank_credit = segment / 4;
  CHECK(problem_with(config).find("beside others") != std::string::npos);
  config.rank_segment = config.rank_credit = 4 * segment;
  CHECK(problem_with(config).find("beside others") != std::string::npos);
}

TEST(no_segment_is_smaller_than_a_sixteenth) {
  const JobConfig config = config_with(0, {1000, 1});
  CHECK_EQ(config.segment_of(1), kib);
}

TEST(nodes_own_servers_beside_dedicated_ones_have_three_quarters_in_one_segment) {
  const JobConfig config = config_with(2, {400, 400, 1000});
  CHECK_EQ(config.segment_of(0), 9856U);  // 9830.4, and up to a multiple of 64
  CHECK_EQ(config.window_of(0).credit, 9856U);
  CHECK_EQ(config.credit_of(0, segment), 9856U);  // there is no less than a segment
  CHECK_EQ(config.credit_of(0, 4 * segment), 2U * 9856U);
  CHECK_EQ(config.segment_of(2), segment);
}

TEST(that_segment_is_at_least_half_of_the_largest) {
  for (const std::uint32_t weight : {1U, 60U, 250U, 333U}) {
    const JobConfig config = config_with(2, {weight, weight, 1000});
    CHECK_EQ(config.segment_of(0), segment / 2);
    CHECK_EQ(config.window_of(0).credit, segment / 2);
    CHECK_EQ(config.credit_of(0, 4 * segment), segment);
  }
}

TEST(nodes_own_servers_keep_step_with_dedicated_ones_that_lead) {
  const JobConfig config = config_with(2, {250, 250, 1000, 600});
  CHECK(config.follows_reference(0) && config.follows_reference(1));
  CHECK(!config.follows_reference(2) && !config.follows_reference(3));
  CHECK(config.is_reference(2));
  CHECK(!config.is_reference(0) && !config.is_reference(3));
  for (const JobConfig& equal : {config_with(2, {1000, 1000}), config_with(2, {1000, 1000, 1000})}) {
    CHECK(!equal.follows_reference(0));
    CHECK(equal.is_reference(0));
    CHECK_EQ(equal.segment_of(0), segment);
    CHECK_EQ(equal.window_of(0).credit, 2 * segment);
  }
}

TEST(where_windows_are_one_segment_they_have_one_in_proportion) {
  JobConfig config = config_with(2, {250, 250, 1000});
  config.credit = segment;
  CHECK_EQ(config.segment_of(0), 4 * kib);
  CHECK_EQ(config.window_of(0).credit, 4 * kib);
  CHECK(!config.follows_reference(0));
}

TEST(they_have_two_of_it_above_four_ninths_of_the_largest_weight) {
  const JobConfig config = config_with(2, {500, 500, 1000});
  CHECK_EQ(config.segment_of(0), 8 * kib);
  CHECK_EQ(config.window_of(0).credit, 16 * kib);
  const JobConfig nearly_equal = config_with(2, {800, 800, 1000});
  CHECK_EQ(nearly_equal.segment_of(0), 9856U);
  CHECK_EQ(nearly_equal.window_of(0).credit, 2U * 9856U);
}

TEST(where_a_dedicated_server_has_less_than_nodes_own_all_are_in_proportion) {
  const JobConfig config = config_with(2, {1000, 250, 500});
  CHECK_EQ(config.segment_of(1), 4 * kib);
  CHECK(!config.follows_reference(1));
  CHECK_EQ(config.window_of(1).credit, 8 * kib);
  CHECK_EQ(config.segment_of(2), 8 * kib);
  CHECK_EQ(config.window_of(2).credit, 16 * kib);
}

}  // namespace
}  // namespace shoal

RUN_TESTS()
