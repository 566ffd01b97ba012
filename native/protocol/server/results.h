// Results on their way to the members: the memory behind their frames until the network has it all, and the root of a
// broadcast, which is answered when a segment has been written to all others.
//
//   A result in flight has unwritten frames, or its root's answer waits for that of a segment before it.
//   The segments that a root waits for are in flight, ascending, and the first has unwritten frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
#include "protocol/machine.h"
#include "protocol/server/credit.h"
#include "protocol/server/links.h"
#include "protocol/server/operation.h"
#include "protocol/server/receipts.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class Results {
 public:
  Results(const Terms& terms, Links& links, Credit& credit, Receipts& receipts);

  // The segment's result goes to every member that is answered, with the credit that it has spent on it.
  void send(Operation& operation, std::uint64_t number, Segment segment);
  // A whole output that was put together here, as the operation's last result. False: the worker's link is gone.
  bool send_block(std::uint32_t rank, std::uint64_t number, DType dtype, Buffer buffer, std::size_t bytes);
  // The segment has no result: its members get their credit back.
  void refund(const Group& group, const Segment& segment);
  // The network has a frame with this token (or the link is gone).
  void written(Token token);
  // Whether a root waits for others to be written to. `number`: of its broadcast.
  bool keeps_waiting(std::uint32_t root, std::uint64_t number) const {
    return unanswered_broadcasts_[root].contains(number);
  }

  // What is being sent still is; nobody is answered when it has been.
  void begin_epoch();

  // Adds what roots are yet to be answered to the worker's bytes.
  void add_unanswered(std::vector<std::uint64_t>& by_rank) const;
  void check_invariants() const;

 private:
  struct InFlight {
    Buffer buffer;
    std::size_t unwritten = 0;  // frames

    // Of a broadcast: what the root hears when all have been written.
    bool answers_root = false;
    std::uint32_t root = 0;
    wire::Header answer;
    std::uint64_t serial = 0;
    std::uint64_t segment = 0;
  };

  void end(Token token);

  const Terms& terms_;
  Links& links_;
  Credit& credit_;
  Receipts& receipts_;
  Token next_token_ = 1;
  std::unordered_map<Token, InFlight> in_flight_;
  // By rank, and number of its broadcast: the segments that it has no answer to, in order. (A link that breaks ends the
  // frames on it in any order.)
  std::vector<std::unordered_map<std::uint64_t, std::deque<Token>>> unanswered_broadcasts_;
};

}  // namespace shoal::server
