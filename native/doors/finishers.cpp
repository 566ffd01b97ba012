#include "doors/finishers.h"

#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "os/thread.h"

namespace shoal::doors {

namespace {

// Threads that wait are kept up to so many: one is at work while the next operation ends.
constexpr std::size_t kept = 2;

constexpr std::chrono::hours turn{1};

}  // namespace

void Finishers::prepare() {
  const std::lock_guard lock(mutex_);
  start_if_none_waits();
}

void Finishers::expect(engine::Operation& operation, Follow follow) {
  std::uint64_t token = 0;
  {
    const std::lock_guard lock(mutex_);
    token = ++last_token_;
    expected_.emplace(token, std::move(follow));
  }
  operation.tell(completions_, token);
}

void Finishers::close() { completions_->close(); }

void Finishers::start_if_none_waits() {
  if (waiting_ > 0) {
    return;
  }
  try {
    os::start_thread([this] { serve(); }).detach();
  } catch (const std::system_error&) {
    if (!has_any_) {
      throw;
    }
    return;  // what follows waits for what runs
  }
  has_any_ = true;
  ++waiting_;
}

// From here on the thread is at work.
Finishers::Follow Finishers::take(std::uint64_t token) {
  const std::lock_guard lock(mutex_);
  --waiting_;
  start_if_none_waits();
  return std::move(expected_.extract(token).mapped());
}

void Finishers::serve() {
  for (;;) {
    const std::optional<std::uint64_t> token = completions_->next(turn);
    if (!token.has_value()) {
      if (completions_->closed()) {
        return;
      }
      continue;
    }
    take (*token)();
    const std::lock_guard lock(mutex_);
    if (waiting_ >= kept) {
      return;
    }
    ++waiting_;
  }
}

}  // namespace shoal::doors
