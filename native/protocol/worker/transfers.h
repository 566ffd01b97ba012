// What goes from worker to worker: the blocks of all-gathers and all-to-alls, and all-reduces on their way round the
// ring. docs/protocol/lifecycle.md. No transfer waits for another.
//
// A transfer has a number, which the home of its operation gives out with SIZES ("exchange" there).
//
// What may be on its way toward this rank is shared out among the members on other nodes that it lacks blocks of, over
// all transfers. So two ranks of a large job have the whole of it, and in a group of all nobody has more than its part.
//
//   senders = blocks of members on other nodes that are on their way, of transfers in progress
//   every transfer in progress belongs to an open operation, which knows its number
//   early grants belong to no transfer in progress
//   unnumbered = open operations that await their number again;  sums = the sums that rings of open operations wait for
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/links.h"
#include "protocol/worker/operation_table.h"

namespace shoal::worker {

class Transfers {
 public:
  Transfers(const Environment& environment, const OperationTable& operations, Links& links);

  // SIZES have come from a server: the transfer begins, if its operation is still open. An error refuses the frame.
  // `problem`: why the operation cannot end well on this rank.
  Status receive_sizes(std::uint32_t server, const Frame& frame, std::optional<Status>& problem);

  // More of a streamed operation's input is there.
  void send_on(Operation& operation);

  // Frames of other workers. They never end an operation here; the caller checks whether it is transferred.
  Status check_header(std::uint32_t rank, const wire::Header& header) const;
  Status receive(std::uint32_t rank, Frame& frame);
  // A link to the rank is there: transfers that waited for it begin.
  void begin_with(std::uint32_t rank);

  // The open operation whose transfer has this number, or null.
  Operation* find(std::uint64_t number) const;
  // A sum of this operation's ring is done. proceed() then counts it.
  Operation& end_sum(Token token);
  void proceed(Operation& operation);

  // The operation has ended; nothing of it moves any more.
  void end(const Operation& operation);
  // A new epoch: this operation has been opened again.
  void note_reopened(const Operation& operation);
  void begin_epoch() { unnumbered_ = 0; }

  // Operations that lack blocks of this rank, whose link is gone.
  std::vector<Operation*> lacking(std::uint32_t rank) const;

  void check_invariants() const;

 private:
  Status start_blocks(Operation& operation, const wire::Sizes& sizes, bool through_home,
                      std::optional<Status>& problem);
  Status place_output(Operation& operation, const std::vector<std::uint64_t>& sizes, std::uint64_t bytes) const;
  Status granted_too_much(const Operation& operation, std::uint32_t rank) const;
  Status start_ring(Operation& operation, std::uint64_t number);
  void start_with(Operation& operation, std::size_t member);
  void send_block(Operation& operation, std::size_t member);
  void send_ring(Operation& operation);
  Status check_data(std::uint32_t rank, const wire::Header& header) const;
  Status receive_grant(std::uint32_t rank, const wire::Header& header);
  Status keep_early_grant(std::uint32_t rank, const wire::Header& header);
  std::uint64_t window_of(const Operation& operation, std::size_t member) const;
  bool is_elsewhere(const Operation& operation, std::size_t member) const;
  // How many of its blocks are to come from other nodes.
  std::size_t senders_of(const Operation& operation) const;
  void receive_block(Operation& operation, std::uint32_t rank, const Frame& frame);
  void receive_ring(Operation& operation, Frame& frame);
  void grant(std::uint32_t rank, const Operation& operation, std::uint64_t bytes) const;
  void send_data(Operation& operation, std::uint32_t rank, const std::byte* from, std::uint64_t offset,
                 std::uint64_t length) const;
  // Whether the home has told this number. If so, and it is not in progress now, it has ended.
  bool was_heard(std::uint64_t number) const;
  std::uint64_t early_grant(std::uint64_t number, std::uint32_t rank) const;
  void forget_grants(std::uint64_t number);
  void note_numbered();

  const Environment& environment_;
  const OperationTable& operations_;
  Links& links_;
  const std::uint64_t port_of_nodes_;  // bytes that may be on their way here: JobConfig::port_window
  const std::uint64_t port_of_ranks_;
  std::unordered_map<std::uint64_t, std::uint64_t> in_progress_;  // by number: that of the operation
  // Grants that came before SIZES: (number, rank) → bytes.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t> early_grants_;
  std::size_t senders_ = 0;
  std::vector<std::uint64_t> heard_;  // by server: the highest number in a SIZES from it
  std::size_t unnumbered_ = 0;        // reopened operations whose number other ranks may know already
  Token next_sum_ = 1;
  std::unordered_map<Token, std::uint64_t> sums_;  // by token: the number of the operation
};

}  // namespace shoal::worker
