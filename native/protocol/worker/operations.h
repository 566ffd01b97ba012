// The lives of a worker's operations: they are submitted, opened, answered and ended, kept for members that may lack
// their results, and opened again in a new epoch. docs/protocol/lifecycle.md and recovery.md.
//
// This class decides what comes next. Its parts do it, and own the state for it.
//
//   measured = the open operations by which the job's credit is measured
//   after the goodbye, nothing is kept for others
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/goodbye.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/job_window.h"
#include "protocol/worker/lost_ranks.h"
#include "protocol/worker/operation_table.h"
#include "protocol/worker/progress.h"
#include "protocol/worker/sender.h"
#include "protocol/worker/server_frames.h"
#include "protocol/worker/submissions.h"
#include "protocol/worker/transfers.h"

namespace shoal::worker {

class Operations {
 public:
  Operations(const Environment& environment, const Groups& groups, const LostRanks& lost_ranks, Links& links,
             ServerFrames& frames, Goodbye& goodbye);

  // What the application does.
  void submit(Submission submission);
  void input_ready(std::uint64_t handle, const std::string& problem);
  void contributed(std::uint64_t handle, Range range);
  void leave();

  // What servers of this epoch say. An error refuses the frame.
  Status receive_from_server(std::uint32_t server, Frame& frame);

  // What other workers say, and links to them.
  Status check_peer_header(std::uint32_t rank, const wire::Header& header) const {
    return transfers_.check_header(rank, header);
  }
  Status receive_from_peer(std::uint32_t rank, Frame& frame);
  void peer_attached(std::uint32_t rank) { transfers_.begin_with(rank); }
  // Fails operations that lack blocks of this rank, whose link is gone. Returns whether there are any.
  bool fail_lacking(std::uint32_t rank);

  // What the driver has done, and what is due.
  void sent(Token number);
  void summed(Token token);
  Time deadline() const { return std::min(progress_.deadline(), submissions_.gates().deadline()); }
  void on_time();

  // The open operation of this handle, which has failed elsewhere on this rank, is to fail here and for all members.
  void fail(std::uint64_t handle, Status why);
  // The home is to fail this one for all members. If it does not answer, it fails here alone.
  void give_up(std::uint64_t number, const Status& why);
  // Ends the operations that need this rank; ends all.
  void end_needing(std::uint32_t rank, const Status& why);
  void end_all(const Status& why);
  // Keeps nothing for other members any longer.
  void forget_finished();

  // A new epoch. suspend(): notes how far operations have come, and returns the numbers of those that are not over for
  // all members, ascending. reopen(): opens them again, once the new weights hold.
  std::vector<std::uint64_t> suspend();
  void restart_server(std::uint32_t server) { sender_.restart(server); }
  void close_server(std::uint32_t server);
  void reopen(const std::vector<std::uint64_t>& numbers);

  // What waits in this group for others to join has moved.
  void move_join(const Hash128& group);

  // The job's credit (job_window.h).
  void set_window(const CongestionController::Setting& setting) { window_.set(setting); }
  void tell_window_again() { window_.tell_again(); }

  const OperationTable& table() const { return table_; }
  const CallRegistry& calls() const { return submissions_.calls(); }

  // Skips most calls if the table is long, so that on average it checks a few operations.
  void check_invariants() const;

 private:
  void open(Submission&& submission, bool was_held);
  Status receive_result(std::uint32_t server, Frame& frame);
  Status receive_admit(std::uint32_t server, const Frame& frame);
  Status receive_failure(std::uint32_t server, const Frame& frame);
  Status receive_sizes(std::uint32_t server, const Frame& frame);
  Status receive_have(std::uint32_t server, const Frame& frame);
  void admit(Operation& operation, Part& part, bool full);
  void note_all_called(Operation& operation) const;
  void note_first_result(Operation& operation) const;
  void end(Operation& operation, Status status);
  void end_if_done(Operation& operation);
  void end_if_transferred(Operation& operation);
  void close(Operation& operation, const Status& status);
  void keep_if_needed(std::unique_ptr<Operation> operation);
  void settle(Operation& operation, std::uint32_t server);
  void forget(std::uint64_t number);
  void forget_finished(const std::vector<std::uint64_t>& numbers, const Status* why);
  void tell_those_who_lack(const Operation& operation, const Status* why);
  void detach(const Operation& operation) const;
  void say_goodbye_if_done();

  const Environment& environment_;
  const LostRanks& lost_ranks_;
  ServerFrames& frames_;
  Goodbye& goodbye_;
  OperationTable table_;
  Submissions submissions_;
  Sender sender_;
  Transfers transfers_;
  JobWindow window_;
  Progress progress_;
  mutable std::size_t unchecked_ = 0;  // calls of check_invariants since the last that looked
};

}  // namespace shoal::worker
