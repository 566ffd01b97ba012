// The ranks of a machine, or some of them, as one of them sees them: matches the operations that they call, and carries
// them out in the memory that they share. A state machine as the others (protocol/machine.h): it opens no file, takes
// no lock, reads no clock and starts no thread.
//
// Where the job has other nodes too, an all-reduce is the first rank's to take to the network for all of them: it sends
// their sum from its own array as it grows, and what comes back there goes to all. Every other operation is left to the
// worker once all ranks of the node have called it with the same arguments.
//
// Promises:
//   * Operations are matched by their keys, as on servers: ranks may call them in different orders. Ranks that disagree
//     are told, all of them, who called what.
//   * Contributions are added in the order of the group's members, with the kernels of the servers: the same bits.
//   * Every operation that was called is finished or handed to the worker, exactly once.
//   * A small operation is done when its last member has called it: contributions lie beside the openings. Large ones
//     flow one after the other, in the order in which the first rank of the node has found that all have called them.
//
// Whoever has the group to itself takes steps: the thread that calls, one that waits, or an attendant. A step changes
// one word that others read, at its end, and rings for them: between two steps a rank may stop or die.
//
// Failures. Ranks begin with small operations as soon as they see that all have called them, and ask nobody: so the
// first rank announces a failure before it decides on it (failures.h). With other nodes an operation fails on all of
// them, and what has gone up fails when the network says so. A rank that does not do its part in time ends everything,
// and so does a first rank that does not answer: nobody can say any more who has what, and a wrong number would be
// worse.
#pragma once

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
#include "protocol/local/mailbox.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"
#include "protocol/local/progress_watch.h"
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
  // What has become of an operation that was sent up: this chunk of the result is in its output; it has ended, after
  // all chunks of one that ended well.
  void chunk_averaged(std::uint64_t handle, Range chunk);
  void averaged(std::uint64_t handle, const Status& status);
  // Nothing is called any more: the other ranks are told once nothing is open.
  void leave() { leaving_ = true; }
  // This operation can never be complete: it fails for all members, if it is not complete.
  struct Failed {
    bool found = false;            // it is open here
    std::uint64_t at_network = 0;  // the handle under which it was sent up, if the worker has to fail it; else 0
  };
  Failed fail_call(const wire::Call& call, const Status& why);
  // Nothing more can be done here, and why: all that is open fails, also what comes later. `network_is_done`: the
  // worker uses no array any more.
  void fail_all(const Status& why, bool network_is_done);
  // The same for a reason that was found in here: the other ranks hear it from this one. What the network knows, they
  // hear from rank 0.
  void give_up(const Status& why);
  void give_up(const std::exception& error);
  // Nobody else writes into this rank's arrays any more, however late, and what is copied from them counts no more:
  // what is open is about to fail.
  void detach_arrays();

  // --- Steps ---

  // Of what ranks say to each other. Whether there was one.
  bool step();
  // Of a large operation: one thing with one chunk.
  bool work();
  bool can_work() const { return broken_.ok() && execution_.ready(); }
  // When on_time() and then step() are to be called at the latest.
  Time deadline() const { return watch_.deadline(); }

  // --- Questions ---

  // Why everything fails; ok: it does not.
  const Status& broken() const { return broken_; }
  std::size_t open_operations() const { return calls_.open(); }
  // What operations are that have been called and not finished or handed over, by handle; without their members. Of
  // these handles, in rising order.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const {
    return calls_.described(handles);
  }
  bool has_called(const wire::Call& call) const { return calls_.has_called(call); }

  void check_invariants() const;

 private:
  // What others say.
  bool read_next();
  void read(std::uint32_t rank, const Record& record);
  bool may_say(std::uint32_t rank, const Record& record) const;
  void read_verdict(const Record& record);
  bool note_who_has_left();

  // From the last call to the first chunk.
  bool write_next_call();
  void judge(Operation& operation, std::uint32_t rank);
  void proceed(Operation& operation);
  bool begin_next();
  void begin(Operation& operation);
  void begin_admitted();

  // The end of one.
  bool note_advanced();
  void hear_verdict(Operation& operation, const Status& status, ConstBytes result);
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
  std::vector<MailboxReader> readers_;  // by rank; this rank's own is not used
  CallTable calls_;
  Execution execution_;
  ProgressWatch watch_;
  Failures failures_;

  Time now_ = 0;
  std::deque<Hash128> complete_;  // all have called them, and nobody here has begun with them
  // Steps until there is nothing to be done are a round: whoever has called last, and finds so in the same round, tells
  // the others.
  std::uint64_t round_ = 0;
  bool leaving_ = false;
  bool said_goodbye_ = false;
  bool is_empty_ = false;  // which the driver has been told
  Status broken_;
};

}  // namespace shoal::local
