#include "doors/finishers.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/callers.h"
#include "os/thread.h"

namespace shoal::doors {

namespace {

// Threads that wait to be told are kept up to so many: one is at work while the next operation ends. Of those that wait
// in groups, so many rest.
constexpr std::size_t kept = 2;
constexpr std::size_t kept_resting = 1;

constexpr std::chrono::hours turn{1};
constexpr std::chrono::seconds turn_in_group{1};

}  // namespace

void Finishers::prepare() {
  const std::lock_guard lock(mutex_);
  start_if_none_waits();
}

void Finishers::expect(const std::shared_ptr<engine::Operation>& operation, Follow follow) {
  {
    const std::lock_guard lock(mutex_);
    // If it ends after this, who waits in its group sees it here.
    if (operation->is_local() && !operation->done()) {
      local_.push_back({operation, std::move(follow)});
      if (next_to_wait_for() != nullptr) {
        wake_one_for_groups();
      }
      return;
    }
  }
  be_told(operation, std::move(follow));
}

void Finishers::close() {
  completions_->close();
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  local_came_.notify_all();
}

// --- Those that are told ---

void Finishers::be_told(const std::shared_ptr<engine::Operation>& operation, Follow follow) {
  std::uint64_t token = 0;
  {
    const std::lock_guard lock(mutex_);
    token = ++last_token_;
    told_.emplace(token, Expected{operation, std::move(follow)});
  }
  operation->tell(completions_, token);
}

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
  return std::move(told_.extract(token).mapped().follow);
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

// --- Those that wait in groups of one machine ---

void Finishers::wake_one_for_groups() {
  if (resting_ > 0) {
    local_came_.notify_one();
    return;
  }
  try {
    os::start_thread([this] { wait_in_groups(); }).detach();
  } catch (const std::system_error&) {
    // The system has no thread: those that are told do it.
    std::list<Expected> all;
    all.swap(local_);
    for (Expected& one : all) {
      const std::uint64_t token = ++last_token_;
      const std::shared_ptr<engine::Operation> operation = one.operation;
      told_.emplace(token, std::move(one));
      operation->tell(completions_, token);
    }
  }
}

// With mutex_ held: the oldest operation of a group in which nobody waits; null if there is none.
std::shared_ptr<engine::Operation> Finishers::next_to_wait_for() const {
  const auto next = std::find_if(local_.begin(), local_.end(), [this](const Expected& one) {
    return std::none_of(waited_for_.begin(), waited_for_.end(),
                        [&one](const auto& waited_for) { return waited_for->shares_group_with(*one.operation); });
  });
  return next == local_.end() ? nullptr : next->operation;
}

bool Finishers::any_has_ended(const engine::Operation& of_group) {
  const std::lock_guard lock(mutex_);
  return closed_ || std::any_of(local_.begin(), local_.end(), [&of_group](const Expected& one) {
           return one.operation->shares_group_with(of_group) && (one.operation->done() || !one.operation->is_local());
         });
}

// With mutex_ held: also those that are no longer the group's.
std::list<Finishers::Expected> Finishers::take_ended(const engine::Operation& of_group) {
  std::list<Expected> ended;
  for (auto next = local_.begin(); next != local_.end();) {
    const auto one = next++;
    if (one->operation->shares_group_with(of_group) && (one->operation->done() || !one->operation->is_local())) {
      ended.splice(ended.end(), local_, one);
    }
  }
  return ended;
}

void Finishers::wait_in_groups() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<engine::Operation> operation = next_to_wait_for();
    if (operation == nullptr && !closed_) {
      if (resting_ >= kept_resting) {
        return;
      }
      ++resting_;
      {
        const engine::Resting resting;
        local_came_.wait(lock, [&] { return closed_ || (operation = next_to_wait_for()) != nullptr; });
      }
      --resting_;
    }
    if (closed_) {
      return;
    }
    waited_for_.push_back(operation);
    if (next_to_wait_for() != nullptr) {
      wake_one_for_groups();
    }
    lock.unlock();
    operation->wait_in_group([&] { return any_has_ended(*operation); }, turn_in_group);
    lock.lock();
    if (closed_) {
      return;
    }
    waited_for_.erase(std::find(waited_for_.begin(), waited_for_.end(), operation));
    std::list<Expected> ended = take_ended(*operation);
    if (!ended.empty() && next_to_wait_for() != nullptr) {
      wake_one_for_groups();  // this thread is at work
    }
    lock.unlock();
    for (Expected& one : ended) {
      if (one.operation->done()) {
        one.follow();
      } else {
        be_told(one.operation, std::move(one.follow));
      }
    }
    ended.clear();  // without the lock
    lock.lock();
  }
}

}  // namespace shoal::doors
