// One large operation as a rank carries it out in the memory that the ranks of a machine share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/range.h"
#include "base/types.h"

namespace shoal::local {

// Where an array lies in a rank's region: what ranks tell each other.
struct Place {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

// What all ranks can reach; empty if not all of it lies in the shared memory.
struct Arrays {
  std::vector<const std::byte*> inputs;  // in the order in which they are added
  std::vector<std::byte*> outputs;       // where the sum goes: one may be one of the inputs

  bool empty() const { return inputs.empty(); }
};

// Which bytes of a rank's arrays go to, and come from, which other rank.
struct Blocks {
  std::vector<Range> outgoing;         // by rank: what of this rank's input it needs
  std::vector<Range> incoming;         // by rank: where in this rank's output it is what comes from there
  std::vector<std::uint64_t> origins;  // by rank: where in its input that begins
  std::uint64_t largest = 0;           // of all that any rank has for another, or for itself: the same on every rank
  bool same = false;                   // all need the same of a rank, and it is in the slot once
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
  bool up = false;                         // the sum goes on to other nodes, from the first rank
  std::span<const std::uint32_t> weights;  // of the servers, if it goes up to all (chunks.h): while it is admitted
  Arrays arrays;                           // of all ranks; outputs of the first alone if it goes up
  // Of all but all-reduces. With an operator each rank gets the sum of its block, without one it gets copies.
  std::optional<Blocks> blocks;

  bool adds() const { return op != Operator::none; }
  bool only_copies() const { return blocks.has_value() && !adds(); }
  bool straight() const { return !arrays.empty(); }
  // Whether results, or the node's sums, go into this rank's output.
  bool fills_output_of(std::uint32_t rank) const { return !up || rank == 0; }
};

// One chunk of a transfer, and in which slot it moves.
struct Chunk {
  const Transfer* transfer;
  std::uint64_t number;  // since the beginning, of all transfers
  std::uint64_t begin;   // in the transfer's bytes
  std::uint64_t bytes;
};

}  // namespace shoal::local
