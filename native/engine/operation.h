// A submitted operation as the application holds it: not done yet, or done with a status and perhaps an output.
//
// finish() is called once, by whichever thread finds that the operation is done. Any thread may call the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "drivers/common/rounds.h"
#include "drivers/shm/shared_group.h"
#include "engine/completions.h"
#include "engine/course.h"

namespace shoal::engine {

// The status of an operation that was open when this rank was shut down.
inline Status closed_status() {
  return Status::error(Code::cancelled,
                       "the operation was open when Shoal was shut down on this rank; wait for it first");
}

class Operation {
 public:
  // `group`: until release(), a thread that waits for the operation takes this group's steps. `number`: of the group
  // whose operation the program has called; none: it is called for other ranks, or by a join. `follow_up`: what
  // follows its end, once, before anybody who waits for it goes on. `course`: notes what it comes to.
  using FollowUp = std::function<void(const Status&)>;
  explicit Operation(std::uint64_t handle, std::weak_ptr<shm::SharedGroup> group = {},
                     std::optional<std::uint32_t> number = {}, FollowUp follow_up = {},
                     std::shared_ptr<Course> course = nullptr)
      : handle_(handle),
        number_(number),
        group_(std::move(group)),
        is_local_(!group_.expired()),
        follow_up_(std::move(follow_up)),
        course_(std::move(course)) {}

  std::uint64_t handle() const { return handle_; }
  const std::optional<std::uint32_t>& number() const { return number_; }

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Before it is submitted: a thread that waits for it does these rounds, which carry it out.
  void carried_out_by(std::weak_ptr<Rounds> rounds) { rounds_ = std::move(rounds); }
  // Waits at most `longest`. Returns whether it is done.
  bool wait(std::chrono::nanoseconds longest);
  // Whether a thread that waits for it can carry it out: it is of ranks of this machine.
  bool is_local() const { return is_local_.load(std::memory_order_acquire); }
  // Whether a thread that takes the other one's group's steps takes its own.
  bool shares_group_with(const Operation& other) const {
    return !group_.owner_before(other.group_) && !other.group_.owner_before(group_);
  }
  // While it is local: takes its group's steps until `enough`, which is asked after each, or at most `longest`.
  void wait_in_group(const std::function<bool()>& enough, std::chrono::nanoseconds longest) const;
  // Adds `token` to `completions` once the operation is done, at once if it is.
  void tell(std::shared_ptr<Completions> completions, std::uint64_t token);
  // Whether tell() was called.
  bool will_tell();

  // From now on only the loop carries it on.
  void release() { is_local_.store(false, std::memory_order_release); }

  // For a timeline; null unless somebody records one.
  const std::shared_ptr<Course>& course() const { return course_; }
  // Before it is submitted: memory for an output whose size is not known yet, to be used if the size turns out to be
  // this.
  void offer_output(std::byte* memory, std::size_t bytes) {
    offered_ = memory;
    offered_bytes_ = bytes;
  }
  // Before finish(): memory for an output of whose size is known only now. `block_bytes`: by member. Null: there is not
  // enough.
  std::byte* allocate_output(const std::vector<std::uint64_t>& block_bytes);
  void finish(Status status);

  // The following are constant once done() is true, and not to be read before.
  const Status& status() const { return status_; }
  std::chrono::steady_clock::time_point finished_at() const { return finished_at_; }
  // What was allocated; null if the offered memory was used.
  std::byte* output() const { return output_.get(); }
  std::size_t output_bytes() const { return output_bytes_; }
  const std::vector<std::uint64_t>& blocks() const { return blocks_; }

 private:
  const std::uint64_t handle_;
  const std::optional<std::uint32_t> number_;
  const std::weak_ptr<shm::SharedGroup> group_;
  std::weak_ptr<Rounds> rounds_;
  std::atomic<bool> is_local_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<std::shared_ptr<Completions>, std::uint64_t>> told_;  // guarded by mutex_; who will be
  std::atomic<bool> done_{false};
  Status status_;
  std::chrono::steady_clock::time_point finished_at_;
  std::unique_ptr<std::byte, void (*)(void*)> output_{nullptr, std::free};
  std::size_t output_bytes_ = 0;
  std::byte* offered_ = nullptr;
  std::size_t offered_bytes_ = 0;
  std::vector<std::uint64_t> blocks_;
  FollowUp follow_up_;
  const std::shared_ptr<Course> course_;
};

// Operations of one group: how many were called, and those of them that are open.
struct Called {
  std::uint64_t count = 0;
  std::vector<std::shared_ptr<Operation>> open;
};

}  // namespace shoal::engine
