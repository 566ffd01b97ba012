#include "protocol/local/crossing.h"

#include <cstring>
#include <numeric>
#include <stdexcept>

#include "check.h"
#include "drivers/sim/random.h"
#include "local_worlds.h"
#include "protocol/sharding.h"

namespace {

using namespace shoal;
using namespace shoal::local;

wire::Bytes numbered(std::uint64_t bytes) {
  wire::Bytes array(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) {
    array[i] = static_cast<std::byte>(i * 131 % 251);
  }
  return array;
}

TEST(blocks_of_nodes_that_follow_each_other_cross_as_they_lie) {
  const Crossing crossing = crossing_of_gather({10, 20, 30, 40}, {0, 0, 1, 1}, 2);
  CHECK(crossing.is_plain && crossing.bytes == 100);
  CHECK(crossing.nodes[0] == (Range{0, 30}) && crossing.nodes[1] == (Range{30, 100}));
  CHECK(crossing.others(0) == (std::vector<Range>{{30, 100}}));
  CHECK_EQ(crossing.takes.size(), 1U);
}

TEST(blocks_of_nodes_that_take_turns_cross_node_by_node) {
  const Crossing crossing = crossing_of_gather({10, 20, 5, 40}, {0, 1, 0, 1}, 2);
  CHECK(!crossing.is_plain);
  CHECK(crossing.nodes[0] == (Range{0, 15}) && crossing.nodes[1] == (Range{15, 75}));
  CHECK(crossing.members[1].crossing == (Range{15, 35}) && crossing.members[1].own == 10);
}

TEST(rows_of_equal_nodes_cross_as_they_lie) {
  const Crossing crossing = crossing_of_scatter(800, 8, {0, 0, 1, 1}, 2, 3);
  CHECK(crossing.is_plain && crossing.bytes == 800);
  CHECK(crossing.result == (Range{400, 800}));
  CHECK(crossing.takes[0].crossing == (Range{200, 400}) && crossing.takes[0].own == 0);
}

TEST(a_shorter_row_is_filled_up) {
  // 5 rows of 8 bytes for 3 members: 2, 2 and 1.
  const Crossing crossing = crossing_of_scatter(40, 5, {0, 1, 1}, 2, 0);
  CHECK(!crossing.is_plain);
  CHECK_EQ(crossing.bytes, 48U);
  CHECK(crossing.nodes[1] == (Range{24, 48}));
  CHECK(crossing.members[0].crossing == (Range{0, 16}));
}

// Whatever the sizes and the order of the members: each byte of each member crosses once, in its node's part, and each
// rank finds all that it gets.
TEST(every_byte_crosses_once_whatever_the_order_of_the_members) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    sim::Random random(seed);
    sim::PromptWork<local::Hands> hands;
    const auto members = static_cast<std::size_t>(random.between(2, 9));
    std::vector<std::uint32_t> nodes;
    std::uint32_t count = 0;
    for (std::size_t member = 0; member < members; ++member) {
      nodes.push_back(static_cast<std::uint32_t>(random.below(count + 1)));
      count = std::max(count, nodes.back() + 1);
    }
    std::vector<std::uint64_t> sizes;
    for (std::size_t member = 0; member < members; ++member) {
      sizes.push_back(random.below(50));
    }
    const Crossing gather = crossing_of_gather(sizes, nodes, count);
    const wire::Bytes output = numbered(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
    wire::Bytes crossing(gather.bytes);
    for (std::size_t member = 0; member < members; ++member) {
      const Piece& piece = gather.members[member];
      const Range& node = gather.nodes[nodes[member]];
      CHECK(node.begin <= piece.crossing.begin && piece.crossing.end <= node.end);
      std::copy_n(output.begin() + static_cast<std::ptrdiff_t>(piece.own), piece.crossing.size(),
                  crossing.begin() + static_cast<std::ptrdiff_t>(piece.crossing.begin));
    }
    CHECK(!gather.is_plain || crossing == output);
    wire::Bytes taken(output.size());
    for (std::uint64_t begin = 0; begin < gather.bytes; begin += 16) {
      take(gather.takes, {begin, std::min(begin + 16, gather.bytes)}, crossing.data() + begin, taken.data(), hands);
    }
    CHECK(taken == output);

    const std::uint64_t rows = random.below(20);
    const wire::Bytes input = numbered(rows * 8);
    for (std::size_t own = 0; own < members; ++own) {
      const Crossing scatter = crossing_of_scatter(input.size(), rows, nodes, count, own);
      wire::Bytes sum(scatter.bytes);
      for (const Piece& piece : scatter.members) {
        std::copy_n(input.begin() + static_cast<std::ptrdiff_t>(piece.own), piece.crossing.size(),
                    sum.begin() + static_cast<std::ptrdiff_t>(piece.crossing.begin));
      }
      CHECK(!scatter.is_plain || sum == input);
      CHECK_EQ(scatter.bytes, scatter.result.size() * count);
      const Range chunk = chunk_of(input.size(), rows, members, own);
      wire::Bytes result(chunk.size());
      take(scatter.takes, {0, scatter.result.size()}, sum.data() + scatter.result.begin, result.data(), hands);
      CHECK(std::equal(result.begin(), result.end(), input.begin() + static_cast<std::ptrdiff_t>(chunk.begin)));
    }
  }
}

TEST(leaders_learn_how_long_all_blocks_are) {
  const wire::Bytes block = numbered(12);
  const wire::Bytes first = encode_blocks({4, 8}, {ConstBytes(block).first(4), ConstBytes(block).last(8)});
  const wire::Bytes second = encode_blocks({7}, {});
  wire::Bytes told = first;
  told.insert(told.end(), second.begin(), second.end());
  const GatheredBlocks gathered = decoded_blocks(told, {first.size(), second.size()}, {0, 1, 0});
  CHECK(gathered.sizes == (std::vector<std::uint64_t>{4, 7, 8}));
  CHECK(!gathered.is_whole);
  CHECK(std::memcmp(gathered.blocks[2].data(), block.data() + 4, 8) == 0);
  CHECK(decoded_blocks(first, {first.size()}, {0, 0}).is_whole);
}

TEST(what_no_leader_tells_is_refused) {
  // By which node; -1: by nobody.
  const auto impossible_of = [](const wire::Bytes& told, const std::vector<std::uint64_t>& by_node) {
    try {
      decoded_blocks(told, by_node, {0, 0, 1});
      return -1;
    } catch (const ImpossibleBlocks& error) {
      return static_cast<int>(error.node);
    }
  };
  const auto refused = [](const wire::Bytes& told, const std::vector<std::uint64_t>& by_node) {
    try {
      decoded_blocks(told, by_node, {0, 0, 1});
      return false;
    } catch (const std::runtime_error&) {
      return true;
    }
  };
  wire::Bytes told = encode_blocks({1, 1, 1}, {});
  CHECK(!refused(told, {16, 8}));
  CHECK(refused(told, {24}));      // of one node
  CHECK(refused(told, {8, 16}));   // less than a number for each
  CHECK(refused(told, {16, 16}));  // more than there is
  told.push_back(std::byte{1});
  told.push_back(std::byte{1});
  CHECK(refused(told, {16, 10}));  // another number of bytes than it says
  CHECK_EQ(impossible_of(encode_blocks({1, 1, 1}, {}), {8, 16}), 0);
  CHECK_EQ(impossible_of(encode_blocks({1, 1, 1}, {}), {16, 16}), 1);
  CHECK_EQ(impossible_of(encode_blocks({most_of_block + 1, 0, 0}, {}), {16, 8}), 0);
  CHECK_EQ(impossible_of(encode_blocks({0, 0, most_of_block + 1}, {}), {16, 8}), 1);
  // Each may be, but not together.
  CHECK_EQ(impossible_of(encode_blocks({1, 0, most_of_block}, {}), {16, 8}), 1);
  CHECK_EQ(impossible_of(encode_blocks({most_of_block, 0, 1}, {}), {16, 8}), 0);
  CHECK_EQ(impossible_of(encode_blocks({most_of_block - 1, 0, 1}, {}), {16, 8}), -1);
}

}  // namespace
RUN_TESTS()
