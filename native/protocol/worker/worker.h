// The worker's machine: opens operations, sends contributions in every server's order and within its credit, puts
// results where they belong, exchanges blocks with other workers, and ends every handle exactly once.
// docs/protocol/lifecycle.md and recovery.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
#include "wire/epoch.h"

namespace shoal {

class Worker final : public Machine {
 public:
  Worker(const JobConfig& config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool);
  ~Worker() override;

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
  // A group whose members speak for others too: it works as long as all that are `needed` are there.
  std::uint32_t make_group_of_nodes(std::vector<std::uint32_t> members, std::vector<std::uint32_t> needed,
                                    const std::string& name);
  // What keys of the group's operations are made from.
  const Hash128& id_of(std::uint32_t group) const;

  // The handle is finished exactly once: within this call if the submission is refused, has failed or needs no one
  // else.
  void submit(Submission submission);
  // These bytes of an operation in parts are there. Nothing happens if it has ended.
  void contributed(std::uint64_t handle, Range range);

  // The job's credit from now on, from the one of the configuration to most_credit(), and whether its links compete
  // (machine.h). Of rank 0's worker only, while an operation is open there: for tests; in a job it is the worker itself
  // that decides (congestion_controller.h).
  void set_window(const CongestionController::Setting& window);

  // Says goodbye as soon as no operation is open; nothing may be submitted after it.
  void leave();
  // Goodbye has been said and handed to the network.
  bool left() const;
  // Whether the server in this process averages at present, so that others need it after this rank has left.
  bool serves() const;
  // From now on WorkerWorld::waiting() is asked every second, and ranks that wait for each other in a circle hear of
  // it.
  void watch_waits();
  // This rank ends with an error: everyone is told, every handle ends.
  void abort(const std::string& reason);

  // Why operations of this group cannot work any more; ok: nothing that they need is known to be lost. What was lost
  // first counts: what ended after it may have ended because of it.
  Status loss_of(std::uint32_t group) const;
  // Ranks that are lost, in the order of their loss, and what ended the job: ok if nothing has. One that has left is
  // none of them.
  const std::vector<std::pair<std::uint32_t, Status>>& lost() const;
  const Status& end_of_job() const;

  Placement on_header(LinkId link, const wire::Header& header) override;
  Buffer spare(std::size_t bytes) override;
  Status on_payload(LinkId link) override;
  void on_sent(Token token) override;
  void on_summed(Token token) override;
  void on_lost(LinkId link, const Status& why) override;
  void on_time(Time now) override;
  Time deadline() const override;

  std::size_t open_operations() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
