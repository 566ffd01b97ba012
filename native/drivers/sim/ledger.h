// Counts the bytes in flight on every link, and says when a machine exceeds what it was granted, or has not got its
// credit back in the end. docs/protocol/lifecycle.md: credit, eager data, the order of admission, acknowledgements.
//
// Toward a server's port that is: where ranks send for themselves, no rank has more than its part of its node's window
// in flight, so all ranks of all nodes together no more than one of each node would have.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "base/hash.h"
#include "drivers/sim/network.h"
#include "protocol/job.h"

namespace shoal::sim {

class Ledger {
 public:
  explicit Ledger(const JobConfig& config) : config_(config) { weights_[0] = config.weights; }

  // What is wrong with it; empty: nothing.
  std::string sent(const End& from, const wire::Header& header, const Bytes& owned);
  std::string arrived(const End& to, const wire::Header& header);
  void received(const End& to, const wire::Header& header);
  // Once nothing is on its way any more: the worker's end of a link that stands.
  std::string at_rest(const End& client) const;

 private:
  // Between one worker and one server, in one epoch: counted anew when the next begins, at each end in its own time.
  struct Flow {
    std::uint32_t epoch = 0;         // of the worker
    std::uint32_t server_epoch = 0;  // as the worker has told the server
    bool reopening = false;          // the worker opens again what was open before
    std::int64_t least = 0;          // the smallest window
    std::int64_t limit = 0;          // and the largest
    std::int64_t credit = 0;         // of the worker, as it knows
    std::int64_t unanswered = 0;     // DATA bytes that the server has and has not granted again
    std::int64_t eager = 0;          // inline bytes that the worker has no answer to
    std::uint32_t results = 0;       // RESULT and SIZES frames that the worker has whole
    std::unordered_map<std::uint64_t, std::int64_t> inlined;  // by operation
    std::unordered_map<std::uint64_t, std::uint64_t> order;   // operation → place in the server's order
    std::uint64_t last_sent = 0;
    std::int64_t window = 0;       // of the worker, as it is without a WINDOW
    std::int64_t rank_window = 0;  // where ranks send for themselves
    std::int64_t in_flight() const { return window - credit; }
    std::set<std::uint64_t> of_ranks;  // operations in groups whose ranks send for themselves
    bool failing = false;              // bytes of an operation that has failed are in flight
  };

  Flow& flow(const End& end);
  void begin(Flow& flow, std::uint32_t server, const JobConfig& config) const;
  void worker_begins(Flow& flow, std::uint32_t server, const wire::Header& header, const Bytes& owned);
  std::string worker_sent(Flow& flow, const wire::Header& header, const Bytes& owned);
  void worker_opens(Flow& flow, const wire::Header& header, const Bytes& owned);
  // Of DATA that was sent beside others: whether it is more than a rank's part of its node's window.
  std::string beside(const Flow& flow, const wire::Header& header) const;
  std::string server_sent(Flow& flow, const wire::Header& header);
  std::string worker_heard(Flow& flow, const wire::Header& header);
  void answered(Flow& flow, std::uint64_t operation);

  // What a server goes by, whoever told it first.
  struct Standing {
    std::uint32_t epoch = 0;
    std::uint32_t job_credit = 0;  // of its last WINDOW in this epoch; 0: there was none
  };

  JobConfig config_;
  bool window_changes_ = false;                                  // the job's credit is not what it was at first
  std::set<Hash128> node_groups_;                                // whose ranks send for their nodes
  std::map<std::uint32_t, std::vector<std::uint32_t>> weights_;  // by epoch
  std::unordered_map<const Seat*, Standing> servers_;
  std::unordered_map<LinkId, Flow> flows_;                            // by the client's end
  std::map<std::pair<LinkId, std::uint64_t>, std::int64_t> granted_;  // peer links: by sending end and exchange
};

}  // namespace shoal::sim
