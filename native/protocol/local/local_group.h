// The ranks of a machine, or some of them, as one of them sees them: matches the operations that they call, and carries
// them out in the memory that they share. A state machine as the others (protocol/machine.h): it opens no file, takes
// no lock, reads no clock and starts no thread.
//
// With other nodes, the leader takes an all-reduce to the network for all ranks of the node: it sends their sum
// from its own array as the sum grows, and the result comes back there and goes to all. So it does with reduce-scatters
// and all-gathers, from an array of all that its node sends or gets (crossing.h). Every other operation is handed to
// the worker once all ranks of the node have called it with the same arguments.
//
// Promises:
//   * Operations are matched by their keys, as on servers: ranks may call them in different orders. Ranks that disagree
//     are told, all of them, who called what.
//   * Contributions are added in the order of the group's members, with the kernels of the servers: the same bits.
//   * Every operation that was called is finished or handed to the worker, exactly once.
//   * A small operation is done when its last member has called it: contributions lie beside the openings. Large ones
//     flow one after the other, in the order that the leader decides.
//
// The thread that holds the group takes steps: one that calls, one that waits, or the attendant. A step changes one
// word that others decide by, as its last act, and rings for them. So a rank may stop or die between any two steps.
//
// Failures. Ranks begin a small operation as soon as they see that all have called it, and ask nobody. So the first
// rank announces a failure before it decides on it (failures.h). With other nodes an operation fails on all of them,
// and one that has gone up fails when the network says so. If a rank does not do its part in time, or the leader
// does not answer, everything ends: nobody knows any more who has what, and a wrong number would be worse.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/job.h"
#include "protocol/local/call_table.h"
#include "protocol/local/execution.h"
#include "protocol/local/failures.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/joined.h"
#include "protocol/local/mailbox.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"
#include "protocol/local/progress_watch.h"
#include "protocol/local/rooms.h"
#include "protocol/local/world.h"
#include "wire/waits.h"

namespace shoal::local {

class LocalGroup {
 public:
  // `members`: the job's ranks that share this memory, by their places in it, the same for all; `rank` is one of them.
  // `has_other_nodes`: these are a node among several, so what they call goes on to the other nodes. Memory and world
  // must outlive it.
  LocalGroup(const GroupMemory& memory, const JobConfig& config, std::vector<std::uint32_t> members, std::uint32_t rank,
             bool has_other_nodes, World& world);
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  // A group of all members, in an order of its own; where there are other nodes, of all ranks of the job.
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const std::optional<Internode>& internode) {
    calls_.add_group(number, id, ranks, internode);
  }

  // --- Events ---

  void on_time(Time now) { now_ = now; }
  void call(Submission submission);
  // The input of a submission that awaits it is there, or will never be and why. No effect if it has ended.
  void input_ready(std::uint64_t handle, const std::string& problem);
  // What has become of an operation that was sent up: this chunk of the result is in its output; it has ended, after
  // all chunks of one that ended well.
  void chunk_averaged(std::uint64_t handle, Range chunk);
  // `told`: what the leaders have told each other of an all-gather.
  void averaged(std::uint64_t handle, const Status& status, const Told& told = {});
  // This rank has joined in the group, or has joined there no more: between them World::called() says what others call
  // there and this rank has not.
  void join(std::uint32_t group) { joined_.begin(group, now_); }
  void end_join(std::uint32_t group) { joined_.end(group, !said_goodbye_); }
  // This rank of the job, which has left, reads nothing any more.
  void note_gone(std::uint32_t rank);
  // Nothing more is called. The other ranks are told once nothing is open.
  void leave();
  // This operation can never be complete: it fails for all members, if it is not complete.
  struct Failed {
    bool found = false;            // it is open here
    std::uint64_t at_network = 0;  // the handle under which it was sent up, if the worker has to fail it; else 0
  };
  Failed fail_call(const wire::Call& call, const Status& why);
  // Nothing more can be done here, and why: all that is open fails, also what comes later. `network_is_done`: the
  // worker uses no array any more.
  void fail_all(const Status& why, bool network_is_done);
  // The same for a reason that this rank found: the others hear it from this rank. A loss that the network knows they
  // hear from rank 0.
  void give_up(const Status& why);
  void give_up(const std::exception& error);
  // From now on no other rank writes into this rank's arrays, and copies from them do not count: open operations are
  // about to fail.
  void detach_arrays();

  // --- Steps ---

  // step(): one thing of what ranks say to each other. work(): one thing with one chunk. Both return whether there was
  // one.
  bool step();
  bool work();
  // Whether the next work() is only to count on in a chain.
  bool passes_chain() const { return broken_.ok() && execution_.passes_chain(); }
  bool can_work() const { return broken_.ok() && execution_.ready(); }
  // When on_time() and then step() are to be called at the latest.
  Time deadline() const { return std::min(watch_.deadline(), calls_.gates().deadline()); }

  // --- Questions ---

  // Why everything fails; ok: it does not.
  const Status& broken() const { return broken_; }
  std::size_t open_operations() const { return calls_.open(); }
  // Open operations by handle, without their members. `handles`: which ones, in rising order.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const {
    return calls_.described(handles);
  }
  bool has_called(const wire::Call& call) const { return calls_.has_called(call); }

  void check_invariants() const;

 private:
  void open(Submission&& submission, bool was_held);

  // What others say.
  bool read_next();
  void read(std::uint32_t place, const Record& record);
  void read_verdict(const Record& record);
  bool note_who_has_left();

  // From the last call to the first chunk.
  bool write_next_call();
  void judge(Operation& operation, std::uint32_t place);
  void proceed(Operation& operation);
  bool begin_next();
  void begin(Operation& operation);
  void begin_admitted();

  // The end of an operation.
  bool note_advanced();
  void hear_verdict(Operation& operation, const Status& status, ConstBytes body, ConstBytes result);
  void end_if_through(Operation& operation);
  void end(Operation& operation, const Status& status);

  // Time.
  bool check_time();
  bool decide_next_failure();

  bool say_goodbye_if_done();
  void ring_others();

  bool is_first() const { return own_ == 0; }
  std::int32_t in_job(std::uint32_t place) const { return static_cast<std::int32_t>(members_.rank_of(place)); }

  const GroupMemory& memory_;
  const JobConfig config_;
  const Members members_;  // by their places, which are what ranks are called in here
  const std::uint32_t own_;
  const bool has_other_nodes_;
  World& world_;
  Outbox outbox_;
  BufferPool arrays_;                   // for crossing arrays; outlives the operations
  std::vector<MailboxReader> readers_;  // by place; this rank's own is not used
  CallTable calls_;
  Execution execution_;
  ProgressWatch watch_;
  Failures failures_;
  Rooms rooms_;
  Joined joined_;

  Time now_ = 0;
  std::deque<Hash128> complete_;  // all have called them, and nobody here has begun with them
  // Counts rounds. A round is all steps until nothing is left to do. A rank that was the last to call, and finds so in
  // the round in which it called, tells the others.
  std::uint64_t round_ = 0;
  bool leaving_ = false;
  bool said_goodbye_ = false;
  bool is_empty_ = false;  // the driver has been told that it is empty
  Status broken_;
};

}  // namespace shoal::local
