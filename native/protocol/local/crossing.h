// How an array of a node's ranks lies while it crosses to the other nodes: node after node, and within a node rank
// after rank, whatever the group's order is. So each leader sends and gets one block for each node.
//
//   all-gather      the blocks of all ranks. A leader sends its own node's and gets the others'.
//   reduce-scatter  a row for each node: the chunks of its ranks. A leader sends its node's sum of all rows and gets
//   its
//                   own row. All rows are as long as the longest.
//
// Mostly that is just how ranks have it: their nodes follow each other in the group, and have rows of one length. Then
// the crossing array is *plain*: an all-gather's is the output, a reduce-scatter's has the order of the input.
//
//   the pieces of members are apart, and lie in their nodes' parts;   takes are apart, and lie in the result
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/range.h"
#include "protocol/local/mailbox.h"
#include "protocol/local/world.h"

namespace shoal::local {

// Bytes of the crossing array, and where they begin in a rank's own array.
struct Piece {
  Range crossing;
  std::uint64_t own = 0;
};

struct Crossing {
  std::uint64_t bytes = 0;
  std::vector<Range> nodes;    // by node
  std::vector<Piece> members;  // by member; own: in the output of an all-gather, in the input of a reduce-scatter
  Range result;                // of the crossing array: what a leader gets
  std::vector<Piece> takes;    // of that result: what this rank gets, ascending, and where it goes in its output
  bool is_plain = false;

  // The other nodes' parts that are not empty.
  std::vector<Range> others(std::size_t own_node) const;
};

// `sizes`: by member, of its block. `nodes`: by member, its node. `count`: of nodes.
Crossing crossing_of_gather(const std::vector<std::uint64_t>& sizes, const std::vector<std::uint32_t>& nodes,
                            std::size_t count);

// Of an array of so many bytes, in so many equal rows of the program's. `own`: this rank's index in the group.
Crossing crossing_of_scatter(std::uint64_t bytes, std::uint64_t rows, const std::vector<std::uint32_t>& nodes,
                             std::size_t count, std::size_t own);

// Copies what this rank gets of a part of the result, from memory that begins with that part.
void take(const std::vector<Piece>& takes, Range part, const std::byte* from, std::byte* output, Hands& hands);

// --- What a leader tells the others of its node's blocks: the bytes of each, then all of them if they are short. ---

// The most bytes of a block, and of all together, as they may be told: more no array can have. What is added up below
// does not overflow.
inline constexpr std::uint64_t most_of_block = std::uint64_t{1} << 48U;

// The most bytes that all leaders together tell each other: sizes, and blocks of at most JobConfig::small bytes.
inline constexpr std::uint64_t most_told = std::uint64_t{32} * 1024 * 1024;

wire::Bytes encode_blocks(const std::vector<std::uint64_t>& sizes, const std::vector<ConstBytes>& blocks);

struct GatheredBlocks {
  std::vector<std::uint64_t> sizes;  // by member
  std::vector<ConstBytes> blocks;    // by member; empty if some did not come along
  bool is_whole = false;             // all came along
};
// What no leader tells, and the node whose leader has told it.
struct ImpossibleBlocks : std::runtime_error {
  explicit ImpossibleBlocks(std::size_t by)
      : std::runtime_error("says impossible things of the blocks of its node"), node(by) {}
  std::size_t node;
};
// `told`: what the nodes have told, one after the other, each of so many bytes. Throws ImpossibleBlocks; and
// std::runtime_error if there is not something of each node.
GatheredBlocks decoded_blocks(ConstBytes told, const std::vector<std::uint64_t>& by_node,
                              const std::vector<std::uint32_t>& nodes);

}  // namespace shoal::local
