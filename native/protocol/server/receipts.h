// Which results of an operation its members have: from the first RESULT or SIZES that is sent until all members have
// acknowledged the last. A receipt outlives its operation.
//
//   acknowledged <= sent (modulo 2^32). A worker with a link has sent − acknowledged results on their way.
//   If a receipt counts by segment: awaited = sum of missing, and missing.front() > 0.
//   A receipt that has ended and awaits nothing is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/server/links.h"
#include "protocol/server/operation.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class Receipts {
 public:
  // No operation has this serial: nobody waits for the acknowledgement of its results.
  static constexpr std::uint64_t no_operation = 0;

  Receipts(const Terms& terms, Links& links);

  // All members have opened the operation.
  void begin(const Operation& operation);
  // A result of this segment is to be sent (0 for SIZES and small operations). It counts as missing also if the
  // member's link is gone.
  void expect(std::uint64_t serial, std::uint64_t segment);
  // The result has been handed to the link.
  void sent(std::uint32_t rank, std::uint64_t serial, std::uint64_t segment);
  // There are no more results of it.
  void end(std::uint64_t serial);
  // The operation has failed: nobody needs its receipt.
  void forget(std::uint64_t serial) { receipts_.erase(serial); }
  bool has(std::uint64_t serial) const { return receipts_.count(serial) > 0; }
  // How many segments, from the first, all members have. 0 if they need not know before the end.
  std::uint64_t settled(std::uint64_t serial) const;

  // Whether the worker can have so many results in all.
  Status check(std::uint32_t rank, std::uint32_t acknowledged) const;
  void acknowledge(std::uint32_t rank, std::uint32_t acknowledged);
  // The worker's link is gone: results on their way to it count as missing.
  void lose(std::uint32_t rank) { workers_[rank].on_their_way.clear(); }

  void begin_epoch();

  void check_invariants() const;

 private:
  struct Receipt {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> members;  // rank and its number
    bool urgent = false;                                           // a handle waits for it
    bool by_segment = false;                                       // members keep results until all have them
    bool ended = false;                                            // there are no more results
    std::uint64_t awaited = 0;                                     // results that members have not acknowledged
    std::deque<std::uint32_t> missing;                             // the same by segment, from `settled` on
    std::uint64_t settled = 0;                                     // segments that all have
  };
  // A RESULT or SIZES.
  struct Sent {
    std::uint64_t serial = 0;
    std::uint64_t segment = 0;
  };
  struct Worker {
    std::deque<Sent> on_their_way;
    std::uint32_t sent = 0;  // modulo 2^32
    std::uint32_t acknowledged = 0;
  };

  void settle_if_all_have(std::unordered_map<std::uint64_t, Receipt>::iterator place);

  const Terms& terms_;
  Links& links_;
  std::unordered_map<std::uint64_t, Receipt> receipts_;  // by serial
  std::vector<Worker> workers_;                          // by rank
};

}  // namespace shoal::server
