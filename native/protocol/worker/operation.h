// One operation on this rank, from its submission until no other member may need it any more.
//
// It has three names. `handle` is the program's, and the one that the world hears. `number` is this worker's own,
// counted from 1: frames between this worker and servers carry it, and it is the token of frames that borrow the
// arrays. `key`, in the opening, is the hash of group, name and occurrence, and the same on all members.
//
// Its parts and its transfer have states of their own. Its own state is open, then finished: the handle is done, and
// others may still lack the result. Between them it may be `ends_later`: the result is decided, but a sum still uses
// the arrays. An operation that failed before it began is opened as failed, and its handle is done at once.
//
//   parts ascend by server
//   finished → no output, no ring, no blocks; an input only if it is a copy
//   ends_later → a ring that sums
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/range.h"
#include "protocol/submission.h"
#include "protocol/worker/block_transfer.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/part.h"
#include "protocol/worker/retained_results.h"
#include "protocol/worker/ring.h"
#include "protocol/worker/stall_watch.h"
#include "wire/opening.h"

namespace shoal::worker {

class Operation {
 public:
  Operation(std::uint64_t number, const Group& group, Submission submission, Time now);

  // What it is.
  std::uint64_t number() const { return number_; }
  std::uint64_t handle() const { return submission_.handle; }
  const std::string& name() const { return opening_.name; }
  std::string text() const;  // "allreduce 'x'", for messages
  const Group& group() const { return group_; }
  const Submission& submission() const { return submission_; }
  // As it was sent, to be sent again.
  wire::Opening& opening() { return opening_; }
  const wire::Opening& opening() const { return opening_; }
  // Decides its size and which way its bytes go, once it is known whether it has failed.
  void measure(const JobConfig& config);
  std::uint64_t bytes() const { return bytes_; }   // of its buffer
  const Range& wanted() const { return wanted_; }  // what this rank gets of the result
  bool is_small() const { return is_small_; }      // at most JobConfig::small bytes
  bool takes_ring() const { return takes_ring_; }
  bool gathers() const { return is_gather_; }
  // Whether servers admit it in their order and answer it by segments. If not, only the home knows it.
  bool needs_admission() const { return !is_gather_ && !takes_ring_; }
  bool contributes() const { return contributes_; }
  // Whether other members need this rank's arrays until they have their results. Then its handle is done only after
  // that.
  bool waits_for_others() const { return waits_for_others_; }
  // Whether its results are the same on all members, so that one can give them to another.
  bool shares_results() const { return shares_results_; }

  // Its parts: what each server does for it.
  void plan(std::uint32_t home, std::vector<Part> parts);
  std::uint32_t home() const { return home_; }
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  bool has_part(std::uint32_t server) const;
  Part& part_of(std::uint32_t server) { return parts_[index_of(server)]; }
  const Part& part_of(std::uint32_t server) const { return parts_[index_of(server)]; }
  // The home's part, if it is the only one.
  Part& only_part() { return parts_.front(); }
  bool all_settled() const;
  bool is_done() const;
  // The fewest segments sent to any server that is owed more, in smaller segments.
  std::uint64_t least_segments_sent() const;
  // Lowest fraction of its shard sent to any reference server that is owed more and whose next segment is there.
  double reference_fraction() const;
  bool in_step(const Part& part) const;
  bool follows_reference() const { return follows_reference_; }  // some of the parts do

  // Its arrays.
  void set_output(std::byte* output, std::size_t bytes);
  void set_wanted(Range wanted) { wanted_ = wanted; }
  // Of a streamed operation: these bytes of the whole array are there. Returns which of the buffer they are; empty if
  // none.
  Range add_contributed(Range range);
  // Whether a segment may be sent.
  bool has_contribution(Range segment) const { return !submission_.streamed || contributed_.contains(segment); }
  // The bytes that this rank sends for a segment, as they are in frames: those of the array while it is the worker's to
  // use, otherwise a copy of what was kept of them, at the end of `owned`.
  std::span<const std::byte> contribution(Range segment, wire::Bytes& owned) const;
  // Puts bytes of a result, as they are in frames, into the output. What of the array that is.
  Range place(std::uint64_t offset, std::span<const std::byte> result) const;
  // Of a small operation: its result is about to overwrite what it contributed, which is copied first.
  void keep_input(BufferPool& pool);
  bool has_own_input() const { return static_cast<bool>(own_input_); }

  // Its end.
  void fail_before_it_began() { failed_here_ = true; }
  bool failed_here() const { return failed_here_; }
  // Why it has failed, for others that may have to hear it.
  void set_failure(const Status& why) { failure_ = why; }
  const Status& failure() const { return failure_; }
  void end_later(Status status);
  const std::optional<Status>& ends_later() const { return ends_later_; }
  void finish();
  bool is_finished() const { return finished_; }
  bool goes_on() const { return !finished_ || failure_.ok(); }
  // Its handle is open, and nobody has begun to end it.
  bool is_undecided() const { return !finished_ && !failed_here_ && !ends_later_ && !watch_.is_given_up(); }
  // All members have their results from this server.
  void settle(std::uint32_t server);

  // A new epoch. suspend(): notes which results are here. begin_again(): returns to the state before plan().
  void suspend();
  void begin_again();
  bool is_reopened() const { return reopened_; }
  // Some of it was answered in earlier epochs.
  bool has_answers() const { return !have_.empty(); }
  bool lacks(Range range) const { return !finished_ && !have_.touches(range); }
  // Whether all results from this server are here.
  bool has_result_of(const Part& part) const;
  // A reopened transfer whose number is not known here.
  bool awaits_number() const { return reopened_ && !needs_admission() && !transfer_.has_begun(); }

  // Counts frames that borrow its arrays and have not been written.
  void count_unsent() { ++unsent_; }
  bool count_sent() { return unsent_ > 0 && (--unsent_, true); }
  std::size_t unsent() const { return unsent_; }
  // True the first time: the application is to hear that it is being sent.
  bool begins_to_send() { return !std::exchange(sending_, true) && !finished_; }
  // True the first time: it is to hear that all have called, and that there is a result.
  bool hears_that_all_called() { return !std::exchange(all_called_, true) && !finished_; }
  bool has_first_result() { return !std::exchange(any_result_, true) && !finished_; }
  // Whether the job's credit is measured by it (job_window.h).
  bool is_measured() const { return measured_; }
  void set_measured(bool on) { measured_ = on; }
  // The bytes that its record counts for.
  void set_record(std::size_t bytes) { record_ = bytes; }
  std::size_t record() const { return record_; }

  BlockTransfer& transfer() { return transfer_; }
  const BlockTransfer& transfer() const { return transfer_; }
  // None before the ring has begun.
  std::optional<Ring>& ring() { return ring_; }
  const std::optional<Ring>& ring() const { return ring_; }
  // Everything that goes from worker to worker has come, and has been sent.
  bool is_transferred() const;
  StallWatch& watch() { return watch_; }
  const StallWatch& watch() const { return watch_; }

  void check_invariants() const;

 private:
  std::size_t index_of(std::uint32_t server) const;

  const std::uint64_t number_;
  const Group& group_;
  Submission submission_;
  wire::Opening opening_;

  std::uint64_t bytes_ = 0;
  Range wanted_;
  bool is_small_ = false;
  bool is_gather_ = false;
  bool takes_ring_ = false;
  bool contributes_ = false;
  bool waits_for_others_ = false;
  bool shares_results_ = false;

  std::uint32_t home_ = 0;
  std::vector<Part> parts_;
  bool follows_reference_ = false;
  BlockTransfer transfer_;
  std::optional<Ring> ring_;
  StallWatch watch_;

  RangeSet contributed_;      // of a streamed operation
  RangeSet have_;             // answered in earlier epochs
  RetainedResults retained_;  // of earlier epochs
  Buffer own_input_;          // a small operation's contribution, copied once its result is here

  bool failed_here_ = false;
  bool finished_ = false;
  bool reopened_ = false;
  Status failure_;
  std::optional<Status> ends_later_;

  bool sending_ = false;
  bool all_called_ = false;
  bool any_result_ = false;
  bool measured_ = false;
  std::size_t unsent_ = 0;
  std::size_t record_ = 0;
};

// Bytes of an operation's record in a worker, without its arrays, if so many servers work on it. limits::open_bytes
// limits their sum.
std::size_t record_bytes(const Submission& submission, std::size_t servers);

}  // namespace shoal::worker
