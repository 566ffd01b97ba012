// The worker's machine: one rank's part of the protocol. It opens operations, sends contributions in every server's
// order and within its credit, puts results where they belong, moves blocks to and from other workers, and ends every
// handle exactly once. docs/protocol/lifecycle.md and recovery.md.
//
// Worker turns events into calls of its parts. Each part knows only those above it:
//
//   environment      the job in this epoch, this rank, the time, the world
//   groups           groups of ranks
//   part, block_transfer, ring, retained_results, stall_watch   parts of one operation's state
//   operation, operation_table                                  one operation; all of them
//   links, server_frames       what is at each link; frames to each server, with acknowledgements
//   sender, job_window         windows: what is sent when; how large they are
//   transfers                  what goes from worker to worker
//   progress, stall_reasons    what does not move, and why
//   lost_ranks, goodbye        what is lost; how this rank leaves
//   submissions                how calls become operations
//   operations                 the lives of operations
//   joins                      groups in which this rank has joined
//   waits, reconnection        what this rank waits for; servers that come back
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/range.h"
#include "protocol/congestion_controller.h"
#include "protocol/job.h"
#include "protocol/machine.h"
#include "protocol/submission.h"
#include "protocol/worker/environment.h"
#include "protocol/worker/goodbye.h"
#include "protocol/worker/groups.h"
#include "protocol/worker/joins.h"
#include "protocol/worker/links.h"
#include "protocol/worker/lost_ranks.h"
#include "protocol/worker/operations.h"
#include "protocol/worker/reconnection.h"
#include "protocol/worker/server_frames.h"
#include "protocol/worker/waits.h"
#include "wire/epoch.h"

namespace shoal {

class Worker final : public Machine {
 public:
  Worker(const JobConfig& config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void attach_server(LinkId link, std::uint32_t index);
  void attach_coordinator(LinkId link);
  void attach_peer(LinkId link, std::uint32_t rank);
  void peer_unreachable(std::uint32_t rank, const std::string& why);
  // What came of WorkerWorld::connect_server: a link for each lane, all of them to this process, or none. A link of an
  // attempt that is over is closed.
  void attach_returned(LinkId link, std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process);
  void server_unreachable(std::uint32_t server, std::uint32_t attempt);

  // `ranks`: members in order, this rank among them (checked by the caller). Returns the group's number.
  std::uint32_t make_group(std::vector<std::uint32_t> ranks, const std::string& name);
  // The leaders of a group that was made, which speak for its other ranks too: it works as long as all those are there.
  std::uint32_t make_group_of_nodes(std::vector<std::uint32_t> leaders, std::uint32_t of, const std::string& name);
  // The group's id, from which the keys of its operations are made.
  const Hash128& id_of(std::uint32_t group) const { return groups_.at(group).id; }

  // The handle is finished exactly once: within this call if the submission is refused, has failed or needs no other
  // rank.
  void submit(Submission submission) { operations_.submit(std::move(submission)); }
  // The input of a submission that awaits it is there, or will never be and why. No effect if it has ended.
  void input_ready(std::uint64_t handle, const std::string& problem) { operations_.input_ready(handle, problem); }
  // These bytes of a streamed operation's contribution are there. No effect if it has ended.
  void contributed(std::uint64_t handle, Range range) { operations_.contributed(handle, range); }
  // Another channel's part of this operation has failed: so does this one, on all members. No effect if it has ended.
  void fail(std::uint64_t handle, Status why) { operations_.fail(handle, std::move(why)); }

  // This rank has joined in the group: from now on WorkerWorld::called() says what others call there and it has not, in
  // the group `as`, which has the same calls. With several ranks a node, `group` may be that of the leaders.
  void join(std::uint32_t group, std::uint32_t as) { joins_.begin(group, as); }
  void end_join(std::uint32_t group) { joins_.end(group); }
  // Others go on in this group, in which this rank has joined: what waits for them to join has moved.
  void note_others_go_on(std::uint32_t group) { operations_.move_join(groups_.at(group).id); }

  // For tests, on rank 0's worker, while an operation is open: the job's credit from now on, from the configuration's
  // up to most_credit(), and whether its links compete (machine.h). In a job the worker itself decides
  // (congestion_controller.h).
  void set_window(const CongestionController::Setting& window) { operations_.set_window(window); }

  // Says goodbye as soon as no operation is open; nothing may be submitted after it.
  void leave() { operations_.leave(); }
  // Goodbye has been said and written to the network.
  bool left() const { return goodbye_.has_left(); }
  // Whether the server in this process averages at present, so that others need it after this rank has left.
  bool serves() const;
  // From now on WorkerWorld::waiting() is asked every second, so that ranks that wait for each other in a circle are
  // found.
  void watch_waits() { waits_.watch(); }
  // This rank ends with an error: everyone is told, every handle ends.
  void abort(const std::string& reason);
  // The job has ended for this rank alone, for this reason: as abort(), but that is what its handles end with. No
  // effect if it has ended before.
  void end(const Status& why);
  // False: rank 0 is lost, or this rank is lost to it.
  bool has_coordinator() const { return !links_.coordinator().empty(); }

  // Why operations of this group cannot work any more; ok: nothing that they need is known to be lost. The first loss
  // counts: later ones may be consequences.
  Status loss_of(std::uint32_t group) const { return lost_ranks_.of(groups_.find(group)); }
  // Ranks that are lost, in the order of their loss; and why the job has ended, or ok. Ranks that left are not lost.
  const std::vector<std::pair<std::uint32_t, Status>>& lost() const { return lost_ranks_.ranks(); }
  const Status& end_of_job() const { return lost_ranks_.end_of_job(); }

  Placement on_header(LinkId link, const wire::Header& header) override;
  Buffer spare(std::size_t bytes) override { return environment_.pool().take(bytes); }
  Status on_payload(LinkId link) override;
  void on_sent(Token token) override;
  void on_summed(Token token) override { operations_.summed(token); }
  void on_lost(LinkId link, const Status& why) override;
  void on_time(Time now) override;
  Time deadline() const override;
  void check_invariants() const override;

  std::size_t open_operations() const { return operations_.table().open_count(); }

 private:
  Status receive_from_server(std::uint32_t server, worker::Frame& frame);
  Status receive_from_coordinator(const worker::Frame& frame);
  Status receive_loss(const worker::Frame& frame);
  Status receive_gone(const worker::Frame& frame);
  Status receive_epoch(const worker::Frame& frame);
  Status receive_reconnect(const worker::Frame& frame);
  Status receive_circle(const worker::Frame& frame);
  Status receive_called(const worker::Frame& frame);
  void begin_epoch(std::uint32_t number, const std::vector<std::uint32_t>& weights);
  void tell_servers(std::uint8_t flags, const wire::Bytes& epoch);
  void close_server(std::uint32_t server);
  void give_up_server(std::uint32_t server);
  void report(wire::Loss::Kind kind, std::uint32_t index, const std::string& why) const;
  void lose_rank(std::uint32_t rank, const Status& why);
  void lose_coordinator(const std::string& why);
  void end_job(const Status& why);
  bool holds_server(std::uint32_t rank) const;

  worker::Environment environment_;
  worker::Groups groups_;
  worker::Links links_;
  worker::ServerFrames frames_;
  worker::LostRanks lost_ranks_;
  worker::Goodbye goodbye_;
  worker::Operations operations_;
  worker::Joins joins_;
  worker::Waits waits_;
  worker::Reconnection reconnection_;
};

}  // namespace shoal
