// A local group (protocol/local/local_group.h) in the memory of this machine: who takes its steps, and when they sleep.
//
//   * Whoever waits does the work. Where nobody waits, the attendant does, a thread of its own. Both sleep when there
//   is
//     nothing to do.
//   * The thread that calls an operation takes the steps that are there to be taken; a small one that others have
//   called
//     already is done when submit() returns.
//   * What the worker is to be asked is asked when the group's lock has been given back: it may answer from the same
//     thread.
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
#include <vector>

#include "base/hash.h"
#include "base/range.h"
#include "base/status.h"
#include "drivers/shm/array_allocator.h"
#include "drivers/shm/memory.h"
#include "protocol/job.h"
#include "protocol/local/arrivals.h"
#include "protocol/local/local_group.h"
#include "wire/waits.h"

namespace shoal::shm {

class SharedGroup;

// Who uses the groups of one rank. None of the first four may call a group back.
class GroupUser {
 public:
  virtual ~GroupUser() = default;

  virtual void sending(std::uint64_t handle) = 0;
  virtual void finish(std::uint64_t handle, Status status) = 0;
  virtual std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) = 0;
  virtual void warn(std::string text) = 0;

  // For the worker of this rank (protocol/local/world.h). These may call the group back. One at a time, in the order in
  // which they came up.
  virtual void hand_over(Submission submission) = 0;
  virtual void send_up(Submission submission) = 0;
  virtual void contributed(std::uint64_t handle, Range range) = 0;
  virtual void fail_job(const Status& why) = 0;
  virtual void left(SharedGroup& group) = 0;
};

class SharedGroup final : private local::World {
 public:
  // `number`: of the group for which it was made; of a machine's own, that of all ranks. The rest: as LocalGroup.
  SharedGroup(std::uint32_t number, std::shared_ptr<const Memory> memory, const JobConfig& config,
              std::vector<std::uint32_t> members, std::uint32_t rank, bool has_other_nodes, GroupUser& user);
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;
  ~SharedGroup() override { close(); }

  std::uint32_t number() const { return number_; }

  void start();
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const std::optional<local::Internode>& internode = {});

  // Memory for arrays of this rank's: an all-reduce of arrays that all lie in such memory is done straight from one to
  // the other, and straight from the first rank's to the network and back where there are other nodes. Zero; null where
  // there is none of the kind. May be kept longer than the group. Throws std::system_error.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) { return allocator_->allocate(bytes); }

  void submit(Submission submission);
  // Works, and sleeps, until `done` or for so long. `done` is asked by this thread only.
  void wait(const std::function<bool()>& done, std::chrono::nanoseconds longest);

  // What has become of an operation that was sent up: by the worker's thread, which it does not hold up.
  void received(std::uint64_t handle, Range range);
  void averaged(std::uint64_t handle, Status status);

  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles);
  bool has_called(const wire::Call& call);
  local::LocalGroup::Failed fail(const wire::Call& call, const Status& why);

  // Nothing more can be done here, and why; the worker uses no array any more. What can still be finished is, all else
  // fails, also what comes later.
  void fail_all(const Status& why);
  // Nothing is submitted any more: the other ranks are told once nothing is open.
  void leave();
  // Ends the attendant. What is open stays open, and the user is not called any more.
  void close();

 private:
  // Threads.
  void attend();
  template <class Works, class Enough>
  void run(Works may_work, Enough enough, std::uint32_t waiters_here = 0);
  bool take_steps(bool works);
  void take_submissions();
  void take_arrivals();
  void run_later(std::function<void()> question);
  void run_deferred();
  bool others_are_blocked() const;
  void note_end();

  // The world of the group.
  void ring(std::uint32_t rank, bool always) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override;
  void sending(std::uint64_t handle) override { user_.sending(handle); }
  void finish(std::uint64_t handle, Status status) override;
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    return user_.allocate_output(handle, block_bytes);
  }
  void warn(std::string text) override { user_.warn(std::move(text)); }
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

  std::mutex submitting_;
  std::deque<Submission> submitted_;           // guarded by submitting_
  std::atomic<std::uint32_t> submissions_{0};  // how many those are

  std::mutex deferring_;
  std::deque<std::function<void()>> deferred_;  // guarded by deferring_
  std::atomic<std::uint32_t> not_run_{0};       // how many those are
  std::atomic<bool> runs_deferred_{false};      // a thread is at it

  std::mutex mutex_;         // held while steps are taken
  local::LocalGroup group_;  // guarded by mutex_
  std::size_t ended_ = 0;    // guarded by mutex_: operations that were finished or handed over meanwhile
  bool closed_ = false;      // guarded by mutex_: nobody is there who could be told anything

  std::atomic<Time> wake_at_{never};   // for whoever sleeps: the group's deadline
  std::atomic<bool> can_work_{false};  // there was something to be done with a chunk when the last steps had been taken

  std::mutex arriving_;
  local::Arrivals arrivals_;          // guarded by arriving_
  std::atomic<bool> arrived_{false};  // there are some to be taken
  std::atomic<bool> closing_{false};
  std::thread attendant_;
};

}  // namespace shoal::shm
