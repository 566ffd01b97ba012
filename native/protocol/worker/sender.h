// When a worker sends the bytes of its operations to servers: inline with their openings, and as DATA in each server's
// order within its window. docs/protocol/lifecycle.md.
//
// For each server, with sums over its parts of all operations:
//   credit ≤ most_credit
//   unanswered = the sum of unanswered bytes of DATA;  eager = the sum of unanswered inline bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/operation_table.h"
#include "protocol/worker/server_frames.h"

namespace shoal::worker {

class Sender {
 public:
  Sender(const Environment& environment, const OperationTable& operations, ServerFrames& frames);

  // A new epoch: begins anew toward a server, with the window that the new weights give it.
  void restart(std::uint32_t server);
  // Nothing can be sent there any more.
  void close(std::uint32_t server) { servers_[server] = Server{}; }

  // Which servers work on the operation, and on what of it.
  void plan(Operation& operation) const;
  // Sends OPEN to all of them. `again`: it was open in an earlier epoch.
  void open(Operation& operation, bool again);

  // The part is the next in its server's order.
  // `full`: in full segments, though it is short. may_be_full(): whether that can be.
  void admit(Operation& operation, Part& part, bool full);
  bool may_be_full(const Operation& operation, const Part& part) const;
  // Sends as much of the admitted operations as the server's window allows.
  void send_on(std::uint32_t server);
  // The same for the servers that follow the reference servers of this operation. They may have waited for `server`,
  // which is now owed less.
  void send_followers(const Operation& operation, std::uint32_t server);

  // Credit has come back. False: it would be more than there can be, and does not count.
  bool add_credit(std::uint32_t server, std::uint32_t bytes);
  // A RESULT for the part's next segment has come. Returns that segment.
  Range answered(Operation& operation, Part& part);
  // The inline bytes are answered; all bytes are answered, or no longer count.
  void answered_inline(Part& part);
  void answered_all(Part& part);

  void check_invariants() const;

 private:
  struct Sizes {
    JobConfig::Window window;
    bool follows_reference = false;  // JobConfig::follows_reference
  };
  struct Server {
    Sizes nodes;                   // of groups in which this rank sends for its node
    Sizes ranks;                   // of groups in which all ranks send for themselves
    std::int64_t credit = 0;       // bytes that may be sent; below 0 after a small operation larger than the credit
    std::int64_t most_credit = 0;  // the most that credit can ever be
    bool is_reference = false;     // JobConfig::is_reference
    std::uint64_t eager = 0;       // bytes of inline data without an answer
    std::uint64_t unanswered = 0;  // bytes of DATA of operations that go on, without an answer
    std::deque<std::uint64_t> admitted;  // numbers in the server's order; ended operations are skipped

    const Sizes& sizes(Senders senders) const { return senders == Senders::nodes ? nodes : ranks; }
    // What may be in flight in all, as long as the server grants what it does.
    std::uint64_t window(Senders senders) const;
    bool may_send(std::uint64_t length, Senders senders) const;
  };

  void follow_reference(const Operation& operation, std::vector<Part>& parts) const;
  void lengthen(Operation& operation, Part& part);
  Range take_inline(Operation& operation, Part& part, bool again);
  bool has_smaller_segments(const Operation& operation, const Part& part) const;
  bool has_enough_on_its_way(const Operation& operation, const Part& part, std::uint64_t length) const;
  void send_segment(Operation& operation, Part& part, const Cursor& at, Range segment);
  void send_contribution(Operation& operation, const Part& part, const wire::Header& header, wire::Bytes owned,
                         Range segment);
  void note_sending(Operation& operation) const;

  const Environment& environment_;
  const OperationTable& operations_;
  ServerFrames& frames_;
  std::vector<Server> servers_;  // by index
};

}  // namespace shoal::worker
