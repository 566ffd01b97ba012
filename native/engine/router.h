// Decides where an operation of this rank is carried out, and whom its events concern: a local group, or a worker. An
// all-reduce of several nodes concerns both: the local group and, under an internode handle on the node's leader, the
// worker. Where the engine has several channels, the workers of all of them carry out a part each of a large
// all-reduce; everything else is the first one's.
//
// The only place that knows of them all. What a local group asks of a worker is posted to the loop, or done by the
// caller if it is short and the loop is idle. What a worker says of an internode operation is passed to the machine's
// group at once. Every method may be called by any thread, unless it says otherwise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/common/gate.h"
#include "drivers/shm/shared_group.h"
#include "engine/channel.h"
#include "engine/divided_operations.h"
#include "engine/joins.h"
#include "engine/local_groups.h"
#include "engine/open_operations.h"
#include "engine/transport.h"
#include "protocol/machine.h"

namespace shoal::engine {

class Router final : public shm::GroupUser {
 public:
  using Channels = std::vector<std::unique_ptr<Channel>>;
  // All of these must outlive it. `warn`: something that a person should read.
  Router(const JobConfig& config, std::uint32_t rank, OpenOperations& operations, Joins& joins,
         const Channels& channels, std::function<void(std::string)> warn);
  ~Router() override;

  // Before start(): the ranks of this machine share this memory.
  void share_memory(std::shared_ptr<const shm::Memory> memory);
  void start();
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool stays = false);
  // In the first loop. It waits for the others, and none of them ever waits for the first.
  std::uint32_t make_group(const std::vector<std::uint32_t>& ranks, const std::string& name);

  // Opens an operation, chooses its handle, and hands it to the local group or the worker.
  struct Submitted {
    std::shared_ptr<Operation> operation;
    bool by_worker = false;
    bool is_taken = false;  // false: the loop has ended
  };
  Submitted submit(Submission&& submission, bool passes, std::optional<Gate> gate);
  // The input of a submission that awaits it is there, or will never be and why. `bytes`: of the larger one of its
  // arrays.
  void input_ready(std::uint64_t handle, std::uint32_t group, std::size_t bytes, const std::string& problem);

  // From now on operations note when they come to what, for a timeline; or no more.
  void record(bool on) { records_.store(on, std::memory_order_relaxed); }

  // This rank has joined in the group, or (`over`) has joined there no more. Between them, others' calls are made here.
  void join(std::uint32_t group, bool over);
  // By a local group or the worker's thread, within an event: others have called it, and this rank, which has joined
  // there, has not. It is called with zeros.
  void called(std::uint32_t group, const wire::Opening& opening) override;

  // Events of a worker's operations, by its thread; numbered(), sending(), all_called() and allocate_output() of a
  // local group's too. `flush`: what is sent in it is written together.
  void numbered(std::uint64_t handle, std::uint32_t occurrence) override;
  void sending(std::uint64_t handle) override { sending(handle, 0); }
  void sending(std::uint64_t handle, std::uint64_t flush);
  void all_called(std::uint64_t handle) override { note(handle, &Course::all_called); }
  void first_result(std::uint64_t handle) { note(handle, &Course::first_result); }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    return local::is_internode(handle) ? groups_->node().allocate_told(local::own_handle(handle), block_bytes)
                                       : operations_.at(handle)->allocate_output(block_bytes);
  }
  void received(std::uint64_t handle, Range range);
  void end(std::uint64_t handle, Status status);
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles) const;
  bool has_called(const wire::Call& call) const;
  WorkerWorld::Failed fail(const wire::Call& call, const Status& why);

  // As WorkerWorld::gone.
  void gone(std::uint32_t rank);
  // Fails the local groups of which `loss_of` says that something is lost.
  void fail(const std::function<Status(std::uint32_t group)>& loss_of);
  // Nothing more is submitted. The first worker leaves once all local groups have been left, the others after it.
  void leave();
  // The first worker has left.
  void leave_other_channels();
  // This rank ends with an error, in all channels.
  void abort(const std::string& reason);
  void close();

 private:
  void note(std::uint64_t handle, Course::Time Course::*moment);
  bool to_worker(Submission&& submission);
  template <class Visit>
  void each_other_channel(Visit visit);
  std::uint32_t make_in_all_channels(const std::function<std::uint32_t(Worker&)>& make);
  void fail_parts(std::uint64_t handle, const Status& why);
  bool to_loop(Loop::Task task, std::size_t bytes);
  void hand_to_worker(Submission submission);
  void add_to_local_groups(std::uint32_t number, const std::vector<std::uint32_t>& ranks, const std::string& name);

  void finish(std::uint64_t handle, Status status) override { operations_.finish(handle, std::move(status)); }
  void warn(std::string text) override { warn_(std::move(text)); }
  void release(std::uint64_t handle) override;
  void hand_over(Submission submission) override;
  void send_up(Submission submission) override;
  void contributed(std::uint64_t handle, Range range) override;
  void fail_job(const Status& why) override;
  void left(shm::SharedGroup& group) override;

  const JobConfig& config_;
  const std::uint32_t rank_;
  OpenOperations& operations_;
  Joins& joins_;
  const Channels& channels_;
  Worker& worker_;  // of the first channel
  Loop& loop_;      // the same
  DividedOperations divided_;
  const std::function<void(std::string)> warn_;
  std::atomic<bool> records_{false};
  std::unique_ptr<LocalGroups> groups_;  // null: every rank is a node of its own
};

}  // namespace shoal::engine
