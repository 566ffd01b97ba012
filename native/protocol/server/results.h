// Results on their way to the members: keeps the memory behind their frames until all are written, and answers the root
// of a broadcast when a segment has been written to all others.
//
//   A result in flight has unwritten frames, or its root's answer waits for that of an earlier segment.
//   The segments that a root waits for are in flight and ascending, and the first has unwritten frames.
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

  // Sends the segment's result to every member that is answered, with the credit that the member has spent on it.
  void send(Operation& operation, std::uint64_t number, Segment segment);
  // Sends a whole output that was put together here, as the operation's last result. False: the worker's link is gone.
  bool send_block(std::uint32_t rank, std::uint64_t number, DType dtype, Buffer buffer, std::size_t bytes);
  // The segment has no result: its members get their credit back.
  void refund(const Group& group, const Segment& segment);
  // Tokens from this one on are of results.
  static constexpr Token first_token = 2;
  // A frame with this token has been written, or its link is gone.
  void written(Token token);
  // Whether a root waits until its broadcast has been written to the others. `number`: the broadcast's.
  bool keeps_waiting(std::uint32_t root, std::uint64_t number) const {
    return unanswered_broadcasts_[root].contains(number);
  }

  // Frames that are being sent still are, but no root is answered for them.
  void begin_epoch();

  // Adds the credit of answers that roots wait for, by rank.
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
  Token next_token_ = first_token;
  std::unordered_map<Token, InFlight> in_flight_;
  // By the root's rank, and the number of its broadcast: the segments without an answer, in order. (A link that breaks
  // ends its frames in any order.)
  std::vector<std::unordered_map<std::uint64_t, std::deque<Token>>> unanswered_broadcasts_;
};

}  // namespace shoal::server
