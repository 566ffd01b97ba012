// One large operation, as a rank carries it out in the shared memory of its machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/range.h"
#include "base/types.h"

namespace shoal::local {

// Where a rank's arrays lie in its region, as ranks tell each other.
struct Offsets {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

// The arrays of all ranks; empty if not all of them lie in the shared memory.
struct Arrays {
  std::vector<const std::byte*> inputs;  // in the order in which they are added
  std::vector<std::byte*> outputs;       // where the sum goes; an output may be an input

  bool empty() const { return inputs.empty(); }
};

// Which bytes of a rank's arrays go to, and come from, which other rank.
struct Blocks {
  std::vector<Range> outgoing;         // by place: the block of this rank's input for it
  std::vector<Range> incoming;         // by place: where its block goes in this rank's output
  std::vector<std::uint64_t> origins;  // by place: where in its input that block begins
  std::uint64_t largest = 0;           // bytes of the largest block of any rank: the same on every rank
  bool same = false;                   // a rank has the same block for all, and it lies in the slot once
};

struct Transfer {
  std::uint64_t handle = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may be the input
  std::uint64_t bytes = 0;
  DType dtype = DType::none;
  Operator op = Operator::none;
  std::vector<std::uint32_t> order;        // the ranks, as their contributions are added
  double divisor = 1;                      // of a mean
  bool up = false;                         // the sum goes on to other nodes, from the leader
  std::span<const std::uint32_t> weights;  // of the servers, if it goes up to all (chunks.h); valid in Flow::admit()
  std::uint64_t queued = 0;                // bytes of sums in slots before it, as the leader says: Flow::queued()
  Arrays arrays;                           // of all ranks; outputs of the first alone if it goes up
  // Of everything but an all-reduce. With an operator each rank gets the sum of its block, otherwise copies.
  std::optional<Blocks> blocks;

  bool adds() const { return op != Operator::none; }
  bool only_copies() const { return blocks.has_value() && !adds(); }
  bool straight() const { return !arrays.empty(); }
  // Whether results, or the node's sums, go into this rank's output.
  bool fills_output_of(std::uint32_t place) const { return !up || place == 0; }
};

// One chunk of a transfer, and in which slot it moves.
struct Chunk {
  const Transfer* transfer;
  std::uint64_t number;  // counted since the beginning, over all transfers
  std::uint64_t begin;   // in the transfer's bytes
  std::uint64_t bytes;
};

}  // namespace shoal::local
