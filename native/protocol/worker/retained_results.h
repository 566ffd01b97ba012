// Results that other members may lack, as they came, so that this rank can send them again when a server is lost
// (docs/decisions/server-loss.md).
//
//   let_go + kept results = results that were added
//   a result's bytes are those of its range
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/range.h"

namespace shoal::worker {

class RetainedResults {
 public:
  RetainedResults() = default;
  RetainedResults(RetainedResults&&) noexcept = default;
  RetainedResults& operator=(RetainedResults&&) noexcept = default;

  // The next result. Without bytes: this worker has sent it itself, and keeps it already. `had_by_all`: how many of the
  // server's results, in order, all members have; modulo 2^32.
  void add(Range range, Buffer bytes, std::uint32_t had_by_all);
  // Adds the results of an epoch that has ended. They are no longer counted.
  void take_over(RetainedResults& ended);
  void forget(const RangeSet& had_by_all);
  void clear() { results_.clear(); }

  bool empty() const { return results_.empty(); }
  std::size_t count() const { return results_.size(); }
  // Copies what is kept of these bytes.
  void copy(Range range, std::byte* to) const;

  void check_invariants() const;

 private:
  struct Result {
    Range range;
    Buffer bytes;
  };

  std::vector<Result> results_;
  std::uint32_t let_go_ = 0;  // because all members have them
};

}  // namespace shoal::worker
