// The data of large all-reduces, in chunks through the slots of the shared memory.
//
// A chunk takes three steps: every rank puts its contribution into its part of the slot; when all have, each reduces
// its share of it, in the order of the group's members; when all have, each takes the whole result out. Operations
// follow one another in the same order on every rank, so three counters a rank say all there is to know:
//
//   collected ≤ reduced ≤ contributed ≤ (the least of all ranks' collected) + slots
//
// What goes on to the network (`up`) only the first rank takes out, sum by sum, as what its node contributes there.
//
// Steps per chunk: 3. Bytes of M that a rank reads: (3 - 1/n) · M; that it writes: 2 · M.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/range.h"
#include "base/types.h"
#include "drivers/shm/chunks.h"
#include "drivers/shm/memory.h"

namespace shoal::shm {

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
  std::uint32_t parts = 1;  // chunks.h
};

class Flow {
 public:
  Flow(const Memory& memory, std::uint32_t own);

  // The next operation, the same on every rank.
  void admit(Transfer transfer);
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

  Chunk chunk(std::uint64_t number) const;
  Share share_of(const Chunk& chunk, std::uint32_t rank) const;
  bool can_reduce() const;
  bool can_collect() const;
  bool can_contribute() const;
  void reduce_one();
  void collect_one();
  void contribute_one();
  std::uint64_t least(std::atomic<std::uint64_t> Desk::*counter) const;
  void publish(std::atomic<std::uint64_t> Desk::*counter, std::uint64_t value);

  const Memory& memory_;
  std::uint32_t own_;
  std::deque<Admitted> transfers_;
  std::deque<Collected> for_network_;
  std::deque<std::uint64_t> finished_;
  std::uint64_t admitted_ = 0;  // chunks
  std::uint64_t contributed_ = 0;
  std::uint64_t reduced_ = 0;
  std::uint64_t collected_ = 0;
};

}  // namespace shoal::shm
