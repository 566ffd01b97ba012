// A submitted operation as the application holds it: not done yet, or done with a status and perhaps an output.
//
// finish() comes once, from whichever thread finds that it is done; the rest may be called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "drivers/shm/shared_group.h"
#include "engine/completions.h"

namespace shoal::engine {

// What becomes of an operation that nobody carries out any more, since this rank has been shut down.
inline Status closed_status() {
  return Status::error(Code::cancelled,
                       "the operation was open when Shoal was shut down on this rank; wait for it first");
}

class Operation {
 public:
  // `group`: whose steps whoever waits takes, from the beginning until release().
  explicit Operation(std::uint64_t handle, std::weak_ptr<shm::SharedGroup> group = {})
      : handle_(handle), group_(std::move(group)), is_local_(!group_.expired()) {}

  std::uint64_t handle() const { return handle_; }

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Whether it is done; waits for that at most so long.
  bool wait(std::chrono::nanoseconds longest);
  // Once it is done, now or later, adds `token` there.
  void tell(std::shared_ptr<Completions> completions, std::uint64_t token);
  // Whether somebody will be told.
  bool will_tell();

  // The loop alone makes it go on from now on.
  void release() { is_local_.store(false, std::memory_order_release); }

  // Before finish(), by one thread: its first bytes are on their way.
  void note_sending() { sent_at_ = std::chrono::steady_clock::now(); }
  // Before it is submitted: where an output of which nobody knows the size may go, if it is of this one.
  void offer_output(std::byte* memory, std::size_t bytes) {
    offered_ = memory;
    offered_bytes_ = bytes;
  }
  // Before finish(): memory for an output of which only now is known how many bytes come from each member; null if
  // there is not so much.
  std::byte* allocate_output(const std::vector<std::uint64_t>& block_bytes);
  void finish(Status status);

  // The following are constant once done() is true, and not to be read before.
  const Status& status() const { return status_; }
  std::chrono::steady_clock::time_point finished_at() const { return finished_at_; }
  // The epoch, if nothing was sent.
  std::chrono::steady_clock::time_point sent_at() const { return sent_at_; }
  // What was allocated, and not what was offered.
  std::byte* output() const { return output_.get(); }
  std::size_t output_bytes() const { return output_bytes_; }
  const std::vector<std::uint64_t>& blocks() const { return blocks_; }

 private:
  const std::uint64_t handle_;
  const std::weak_ptr<shm::SharedGroup> group_;
  std::atomic<bool> is_local_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<std::shared_ptr<Completions>, std::uint64_t>> told_;  // guarded by mutex_; who will be
  std::atomic<bool> done_{false};
  Status status_;
  std::chrono::steady_clock::time_point sent_at_;
  std::chrono::steady_clock::time_point finished_at_;
  std::unique_ptr<std::byte, void (*)(void*)> output_{nullptr, std::free};
  std::size_t output_bytes_ = 0;
  std::byte* offered_ = nullptr;
  std::size_t offered_bytes_ = 0;
  std::vector<std::uint64_t> blocks_;
};

}  // namespace shoal::engine
