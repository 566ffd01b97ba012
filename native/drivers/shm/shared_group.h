// A local group (protocol/local/local_group.h) in the memory of this machine: which threads take its steps, and when
// they sleep.
//
//   * A thread that waits for an operation does the work. While none waits, the attendant does, a thread of the
//     group's. Both sleep when there is nothing to do.
//   * A thread that calls an operation takes the steps that can be taken. A small operation that all others have called
//     already is done when submit() returns.
//   * The worker is asked only after the group's lock has been released, since it may answer from the same thread.
//
// Every method may be called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "base/range.h"
#include "base/status.h"
#include "drivers/shm/array_allocator.h"
#include "drivers/shm/memory.h"
#include "protocol/job.h"
#include "protocol/local/local_group.h"
#include "protocol/local/network_results.h"
#include "wire/waits.h"

namespace shoal::shm {

class SharedGroup;

// The user of one rank's groups. None of the first eight may call a group back, but called() may submit_later().
class GroupUser {
 public:
  virtual ~GroupUser() = default;

  virtual void numbered(std::uint64_t /*handle*/, std::uint32_t /*occurrence*/) {}
  virtual void sending(std::uint64_t handle) = 0;
  virtual void all_called(std::uint64_t /*handle*/) {}
  virtual void finish(std::uint64_t handle, Status status) = 0;
  virtual std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) = 0;
  virtual void warn(std::string text) = 0;
  // In this group this rank has joined, and another one has called what it has not (protocol/joining.h).
  virtual void called(std::uint32_t group, const wire::Opening& opening) = 0;
  // The operation is the worker's from now on: whoever waits for it waits no more in the group.
  virtual void release(std::uint64_t handle) = 0;

  // For the worker of this rank (protocol/local/world.h). These may call the group back. Called one at a time, in
  // order.
  virtual void hand_over(Submission submission) = 0;
  virtual void send_up(Submission submission) = 0;
  virtual void contributed(std::uint64_t handle, Range range) = 0;
  virtual void fail_job(const Status& why) = 0;
  virtual void left(SharedGroup& group) = 0;
};

class SharedGroup final : private local::World {
 public:
  // `number`: of the group for which it was made; for a machine's own, that of the group of all ranks. The rest: as
  // LocalGroup.
  SharedGroup(std::uint32_t number, std::shared_ptr<const Memory> memory, const JobConfig& config,
              std::vector<std::uint32_t> members, std::uint32_t rank, bool has_other_nodes, GroupUser& user);
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;
  ~SharedGroup() override { close(); }

  std::uint32_t number() const { return number_; }

  void start();
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const std::optional<local::Internode>& internode = {});

  // Memory for this rank's arrays, all zero. If all arrays of an all-reduce lie in such memory, nothing is copied
  // through slots; with other nodes, the leader's output goes straight to the network and back. Null if there is no
  // such memory. May outlive the group. Throws std::system_error.
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool stays = false) {
    return allocator_->allocate(bytes, stays);
  }

  void submit(Submission&& submission);
  // The same, left to the next thread that takes steps.
  void submit_later(Submission submission);
  // The input of a submission that awaits it is there, or will never be and why.
  void input_ready(std::uint64_t handle, std::string problem);
  // This rank has joined in this group of the local group's, or has joined there no more.
  void join(std::uint32_t group, bool over);
  // Works and sleeps until `done`, or for `longest`. Only this thread calls `done`.
  void wait(const std::function<bool()>& done, std::chrono::nanoseconds longest);

  // What has become of an operation that was sent up. Called by the worker's thread; does not block it.
  void received(std::uint64_t handle, Range range);
  void averaged(std::uint64_t handle, Status status);
  // Memory for what the leaders tell each other of one; null: it is not at the network.
  std::byte* allocate_told(std::uint64_t handle, const std::vector<std::uint64_t>& by_node);

  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles);
  bool has_called(const wire::Call& call);
  local::LocalGroup::Failed fail(const wire::Call& call, const Status& why);

  // This rank, which has left, reads nothing any more.
  void gone(std::uint32_t rank);
  // Nothing more can be done here, and why; the worker uses no array any more. Operations that can still be finished
  // are; all others fail, later ones too.
  void fail_all(const Status& why);
  // Nothing more is submitted. The other ranks are told once nothing is open.
  void leave();
  // Ends the attendant. Open operations stay open, and the user is not called any more.
  void close();

 private:
  // Threads.
  void attend();
  template <class Works, class Enough>
  void run(Works may_work, Enough enough, std::uint32_t waiters_here = 0);
  bool take_steps(bool works);
  struct Input {
    std::uint64_t handle;
    std::string problem;
  };

  struct Join {
    std::uint32_t group;
    bool over;
  };
  using Submitted = std::variant<Submission, Input, Join>;

  void add_submitted(Submitted next);
  void submit_next(Submitted next);
  void take_submissions();
  void take_network_results();
  void run_later(std::function<void()> question);
  void run_deferred();
  void give_up(const std::exception& error);
  bool others_are_blocked() const;
  void note_end();

  // The world of the group.
  void ring(std::uint32_t rank, bool always) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override;
  void numbered(std::uint64_t handle, std::uint32_t occurrence) override { user_.numbered(handle, occurrence); }
  void sending(std::uint64_t handle) override { user_.sending(handle); }
  void all_called(std::uint64_t handle) override { user_.all_called(handle); }
  void finish(std::uint64_t handle, Status status) override;
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    return user_.allocate_output(handle, block_bytes);
  }
  void warn(std::string text) override { user_.warn(std::move(text)); }
  void called(std::uint32_t group, const wire::Opening& opening) override { user_.called(group, opening); }
  bool holds(const std::byte* begin, std::uint64_t bytes) const override { return allocator_->holds(begin, bytes); }
  void reach(std::uint32_t rank, std::size_t end) override { memory_->open(rank, end); }
  void detach(const std::byte* begin, std::uint64_t bytes) override { allocator_->detach(begin, bytes); }
  void hand_over(Submission submission) override;
  void send_up(Submission submission, const std::optional<local::Chunks>& chunks) override;
  void contributed(std::uint64_t handle, Range range) override;
  void open_as_failed(Submission submission) override;
  void fail_job(const Status& why) override;
  void empty() override;

  const std::uint32_t number_;
  const std::shared_ptr<const Memory> memory_;
  const std::uint32_t own_;  // this rank's place
  const std::shared_ptr<ArrayAllocator> allocator_;
  GroupUser& user_;
  RankWords& words_;

  struct NewGroup {
    std::uint32_t number;
    Hash128 id;
    std::vector<std::uint32_t> ranks;
    std::optional<local::Internode> internode;
  };

  std::mutex submitting_;             // held for a moment, also by the loop's thread: mutex_ may be taken for long
  std::vector<NewGroup> new_groups_;  // guarded by submitting_
  std::atomic<bool> any_new_groups_{false};    // there are some
  std::deque<Submitted> submitted_;            // guarded by submitting_
  std::atomic<std::uint32_t> submissions_{0};  // the size of submitted_

  std::mutex deferring_;
  std::deque<std::function<void()>> deferred_;  // guarded by deferring_
  std::atomic<std::uint32_t> not_run_{0};       // how many have not been run
  std::atomic<bool> runs_deferred_{false};      // a thread runs them

  std::mutex mutex_;         // held while steps are taken
  local::LocalGroup group_;  // guarded by mutex_
  std::size_t ended_ = 0;    // guarded by mutex_: operations that were finished or handed over meanwhile
  bool closed_ = false;      // guarded by mutex_: the user is not called any more

  std::atomic<Time> waited_until_{0};  // when a thread stopped waiting last
  std::atomic<Time> wake_at_{never};   // the group's deadline, for threads that sleep
  std::atomic<bool> can_work_{false};  // a chunk could move when the last steps had been taken

  std::mutex arriving_;
  local::NetworkResults network_results_;  // guarded by arriving_
  std::atomic<bool> arrived_{false};       // network_results_ has some
  std::atomic<bool> closing_{false};
  std::thread attendant_;
};

}  // namespace shoal::shm
