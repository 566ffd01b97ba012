#include "drivers/tcp/operation.h"

#include <new>
#include <numeric>
#include <utility>

namespace shoal::tcp {

bool Operation::wait(std::chrono::nanoseconds longest) {
  if (done()) {
    return true;
  }
  const auto deadline = std::chrono::steady_clock::now() + longest;
  if (helped()) {
    if (const std::shared_ptr<Helper> helper = helper_.lock()) {
      helper->help(*this, longest);
    }
  }
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return done(); });
}

void Operation::tell(std::shared_ptr<Completions> completions, std::uint64_t token) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      told_.emplace_back(std::move(completions), token);
      return;
    }
  }
  completions->add(token);
}

std::byte* Operation::allocate_output(const std::vector<std::uint64_t>& block_bytes) {
  blocks_ = block_bytes;
  output_bytes_ = std::accumulate(blocks_.begin(), blocks_.end(), std::size_t{0});
  // Not initialised: every byte will be received. One byte at least, so that there is an address.
  output_.reset(new (std::nothrow) std::byte[output_bytes_ > 0 ? output_bytes_ : 1]);
  return output_.get();
}

void Operation::finish(Status status) {
  std::vector<std::pair<std::shared_ptr<Completions>, std::uint64_t>> told;
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    finished_at_ = std::chrono::steady_clock::now();
    done_.store(true, std::memory_order_release);
    told.swap(told_);
  }
  changed_.notify_all();
  for (const auto& [completions, token] : told) {
    completions->add(token);
  }
}

}  // namespace shoal::tcp
