// Operations whose data goes from worker to worker, in blocks or round the ring: gives out their numbers, and tells
// each member the others' sizes. If all inputs came with the openings, the outputs are put together here.
//
// A transfer's number, (index + 1) << 40 | count, is never used twice, also by a server that has started anew: the
// count of an epoch begins above those of the epochs before.
//
//   (epoch mod 4096) << 28 < next count, which only rises.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "protocol/server/credit.h"
#include "protocol/server/links.h"
#include "protocol/server/operation.h"
#include "protocol/server/receipts.h"
#include "protocol/server/results.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class BlockTransfers {
 public:
  BlockTransfers(const Terms& terms, Links& links, Credit& credit, Receipts& receipts, Results& results,
                 BufferPool& pool);

  // All have opened the operation: tells its members. True: they get everything from here, so it is over.
  bool start(Operation& operation);

  void begin_epoch(std::uint32_t number);

  void check_invariants(std::uint32_t epoch) const;

 private:
  std::uint64_t number_for(const Operation& operation);
  bool is_put_together_here(const Operation& operation) const;
  std::vector<std::uint64_t> blocks_for(const Operation& operation, std::size_t member) const;
  Buffer put_together(const Operation& operation, const std::vector<std::uint64_t>& blocks,
                      std::vector<std::uint64_t>& taken);

  const Terms& terms_;
  Links& links_;
  Credit& credit_;
  Receipts& receipts_;
  Results& results_;
  BufferPool& pool_;
  std::uint64_t next_count_ = 1;
};

}  // namespace shoal::server
