#include "engine/completions.h"

#include "engine/callers.h"

namespace shoal::engine {

void Completions::add(std::uint64_t token) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    count_callbacks(1);
    tokens_.push_back(token);
  }
  changed_.notify_one();
}

std::optional<std::uint64_t> Completions::next(std::chrono::nanoseconds longest) {
  std::unique_lock lock(mutex_);
  {
    const Resting until_there_is_one;
    changed_.wait_for(lock, longest, [this] { return closed_ || !tokens_.empty(); });
  }
  if (closed_ || tokens_.empty()) {
    return std::nullopt;
  }
  const std::uint64_t token = tokens_.front();
  tokens_.pop_front();
  count_callbacks(-1);  // from here on it is this thread that may call something
  return token;
}

void Completions::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    count_callbacks(-static_cast<std::int64_t>(tokens_.size()));
    tokens_.clear();
  }
  changed_.notify_all();
}

bool Completions::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace shoal::engine
