#include "engine/operation.h"

#include <sys/mman.h>

#include <cstdlib>
#include <numeric>
#include <utility>

namespace shoal::engine {

namespace {

// A kernel that may takes pages of this size for them: to be given each of the small ones takes longer than to fill it.
constexpr std::size_t huge_page = 2 * 1024 * 1024;

// Not initialised. Null if there is not so much.
void* allocate(std::size_t bytes) {
  if (bytes < 2 * huge_page) {
    return std::malloc(bytes > 0 ? bytes : 1);
  }
  void* const memory = std::aligned_alloc(huge_page, (bytes + huge_page - 1) / huge_page * huge_page);
  if (memory != nullptr) {
    ::madvise(memory, bytes, MADV_HUGEPAGE);
  }
  return memory;
}

}  // namespace

bool Operation::wait(std::chrono::nanoseconds longest) {
  if (done()) {
    return true;
  }
  const auto deadline = std::chrono::steady_clock::now() + longest;
  wait_in_group([this] { return done() || !is_local(); }, longest);
  if (const std::shared_ptr<Rounds> rounds = rounds_.lock()) {
    rounds->help([this] { return done(); }, longest);
  }
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return done(); });
}

void Operation::wait_in_group(const std::function<bool()>& enough, std::chrono::nanoseconds longest) const {
  if (is_local()) {
    if (const std::shared_ptr<shm::SharedGroup> group = group_.lock()) {
      group->wait(enough, longest);
    }
  }
}

void Operation::tell(std::shared_ptr<Completions> completions, std::uint64_t token) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      told_.emplace_back(std::move(completions), token);
      completions = nullptr;
    }
  }
  if (completions != nullptr) {
    completions->add(token);
  } else if (const std::shared_ptr<Rounds> rounds = rounds_.lock()) {
    rounds->leave_to_the_loop();
  }
}

bool Operation::will_tell() {
  const std::lock_guard lock(mutex_);
  return !told_.empty();
}

std::byte* Operation::allocate_output(const std::vector<std::uint64_t>& block_bytes) {
  blocks_ = block_bytes;
  const std::size_t bytes = std::accumulate(blocks_.begin(), blocks_.end(), std::size_t{0});
  if (offered_ != nullptr && offered_bytes_ == bytes) {
    return offered_;
  }
  output_bytes_ = bytes;
  // Every byte will be received.
  output_.reset(static_cast<std::byte*>(allocate(output_bytes_)));
  return output_.get();
}

void Operation::finish(Status status) {
  std::vector<std::pair<std::shared_ptr<Completions>, std::uint64_t>> told;
  if (follow_up_) {
    std::exchange(follow_up_, nullptr)(status);
  }
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    finished_at_ = std::chrono::steady_clock::now();
    if (course_ != nullptr) {
      course_->end(status_.code, finished_at_);
    }
    done_.store(true, std::memory_order_release);
    told.swap(told_);
  }
  changed_.notify_all();
  for (const auto& [completions, token] : told) {
    completions->add(token);
  }
}

}  // namespace shoal::engine
