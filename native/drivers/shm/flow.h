// The data of large operations, in chunks: through the slots of the shared memory, or straight from arrays to arrays
// where those of all ranks lie in it (flow_direct.cpp).
//
// By shares, a chunk takes three steps: every rank puts its contribution into its part of the slot; when all have, each
// reduces its share of it, in the order of the group's members; when all have, each takes the whole result out.
// Operations follow one another in the same order on every rank, so three counters a rank say all there is to know:
//
//   collected ≤ reduced ≤ contributed ≤ (the least of all ranks' collected) + slots
//
// What goes on to the network (`up`) only the first rank takes out, sum by sum, as what its node contributes there.
//
// Steps per chunk: 3. Bytes of M that a rank reads: (3 - 1/n) · M; that it writes: 2 · M.
//
// As a chain, for what need not be wider while it is added up (flow_chain.cpp): the first member puts its contribution
// into the slot, each that follows adds its own to what is there, and when the last has, each takes the result out. A
// chunk needs one part of a slot instead of one for each rank, so there are so many more slots, and ranks are busy with
// different chunks instead of waiting for each other. Between the two ways all slots are free for a moment.
//
// Steps per chunk: n + 1. Bytes of M that a rank reads: at most 3 · M; that it writes: 2 · M.
//
// Straight: each reduces its share of each chunk, and writes it to all. A chunk needs no slot and waits for nobody,
// since all ranks have called the operation before it flows; it is done when all have reduced their shares of all
// chunks. Steps: 1. Bytes of M that a rank reads: M; that it writes: M.
//
// Straight and up: each writes its share into the first rank's output alone, which sends each chunk from there as soon
// as all have reduced it, and nobody is far ahead of the others. A share is read in all inputs before it is written, so
// that output may be an input. Steps per chunk: 1. Bytes of M that a rank reads: M; that it writes: M/n.
//
// Operations that have different bytes for each rank go through slots too (flow_blocks.cpp): 2 steps a chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/range.h"
#include "base/types.h"
#include "drivers/shm/blocks.h"
#include "drivers/shm/chunks.h"
#include "drivers/shm/memory.h"

namespace shoal::shm {

// What all ranks can reach; empty if not all of it lies in the shared memory.
struct Arrays {
  std::vector<const std::byte*> inputs;  // in the order in which they are added
  std::vector<std::byte*> outputs;       // where the sum goes: one may be one of the inputs

  bool empty() const { return inputs.empty(); }
};

struct Transfer {
  std::uint64_t name = 0;  // the caller's
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may be the input
  std::uint64_t bytes = 0;
  DType dtype = DType::none;
  Operator op = Operator::none;
  std::vector<std::uint32_t> order;  // the ranks, as their contributions are added
  double divisor = 1;                // of a mean
  bool up = false;
  std::span<const std::uint32_t> weights;  // of the servers, if it goes up to all (chunks.h): while it is admitted
  Arrays arrays;                           // of all ranks; outputs of the first alone if it goes up
  // Of all but all-reduces. With an operator each rank gets the sum of its block, without one it gets copies.
  std::optional<Blocks> blocks;

  bool adds() const { return op != Operator::none; }
  bool only_copies() const { return blocks.has_value() && !adds(); }
};

class Flow {
 public:
  Flow(const Memory& memory, std::uint32_t own);

  // The next operation, the same on every rank. Into which chunks it is cut.
  Chunks admit(Transfer transfer);
  // One step of one chunk, if there is one to be done. Whether there was.
  bool step();
  // Whether step() would do something.
  bool ready() const;
  // The next chunk of an operation for the network that is there: on the first rank.
  struct Collected {
    std::uint64_t name;
    Range range;
  };
  std::optional<Collected> take_collected();
  // The next operation that is done here: nothing uses its arrays any more.
  std::optional<std::uint64_t> take_finished();
  // The ranks that others wait for.
  std::vector<std::uint32_t> late() const;

 private:
  struct Admitted {
    Transfer transfer;
    std::uint64_t first = 0;  // the number of its first chunk
    Chunks chunks;
    bool chain = false;
    // So many chunks must have been collected by all ranks before one of these may be in a slot.
    std::uint64_t after = 0;

    std::uint64_t end() const { return first + chunks.count(); }
    bool direct() const { return !transfer.arrays.empty(); }
    // Whether this rank has something to do with each chunk that is reduced, and not with all of them at once.
    bool collects_each(std::uint32_t rank) const { return !direct() || (transfer.up && rank == 0); }
  };
  struct Chunk {
    const Transfer* transfer;
    std::uint64_t begin;  // in its bytes
    std::uint64_t bytes;
  };
  struct Share {
    std::uint64_t begin;
    std::uint64_t end;
  };

  std::uint64_t chunk_bytes(const Transfer& transfer) const;
  const Admitted& admitted(std::uint64_t number) const;  // the operation that has this chunk
  // Whether results, or the node's sums, go into this rank's output here.
  bool takes(const Transfer& transfer) const { return !transfer.up || own_ == 0; }
  Chunk chunk(std::uint64_t number) const;
  Share share_of(const Chunk& chunk, std::uint32_t rank) const;
  bool can_reduce() const;
  bool can_collect() const;
  bool can_contribute() const;
  void reduce_one();
  void collect_one();
  void contribute_one();
  void reduce_direct(const Chunk& chunk) const;
  void collect_shares(const Chunk& chunk) const;
  bool adds_in_chain(const Transfer& transfer) const;
  std::uint64_t slots_for(const Admitted& admitted) const;
  bool has_slot(const Admitted& admitted, std::uint64_t number) const;
  std::byte* chain_slot(std::uint64_t number) const;
  bool can_add_to_chain(const Admitted& next) const;
  void add_to_chain(const Chunk& chunk);
  void pass_chains();
  void collect_from_chain(const Chunk& chunk) const;
  std::vector<std::uint32_t> late_in_chain(const Admitted& whole) const;
  std::uint64_t slice_bytes(const Transfer& transfer) const;
  std::uint64_t slice_place(const Transfer& transfer, std::uint32_t rank) const;
  void contribute_blocks(const Chunk& chunk);
  void reduce_block(const Chunk& chunk);
  void collect_blocks(const Chunk& chunk) const;
  void finish_first();
  std::uint64_t least(std::atomic<std::uint64_t> Desk::*counter) const;
  void publish(std::atomic<std::uint64_t> Desk::*counter, std::uint64_t value);
  void publish_collected(std::uint64_t step, std::uint64_t slots);

  const Memory& memory_;
  std::uint32_t own_;
  std::deque<Admitted> transfers_;
  std::deque<Collected> for_network_;
  std::deque<std::uint64_t> finished_;
  bool chain_ = false;          // how slots were used last
  std::uint64_t admitted_ = 0;  // chunks
  std::uint64_t contributed_ = 0;
  std::uint64_t reduced_ = 0;
  std::uint64_t collected_ = 0;
};

}  // namespace shoal::shm
