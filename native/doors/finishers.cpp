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
      call_one_if_needed();
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

// With mutex_ held: sees to it that a thread comes, if there is anything for one. It will call the next one.
void Finishers::call_one_if_needed() {
  if (called_ > 0 || !has_any_for_groups()) {
    return;
  }
  if (resting_ > 0) {
    ++called_;
    local_came_.notify_one();
    return;
  }
  try {
    os::start_thread([this] { wait_in_groups(); }).detach();
    ++called_;
  } catch (const std::system_error&) {
    // The system has no thread: those that are told do it.
    std::list<Expected> all;
    all.splice(all.end(), ended_);
    all.splice(all.end(), local_);
    for (Expected& one : all) {
      const std::uint64_t token = ++last_token_;
      const std::shared_ptr<engine::Operation> operation = one.operation;
      told_.emplace(token, std::move(one));
      operation->tell(completions_, token);
    }
  }
}

// With mutex_ held.
bool Finishers::has_any_for_groups() const { return !ended_.empty() || next_to_wait_for() != nullptr; }

// With mutex_ held, by a thread that was called.
void Finishers::come() { called_ -= std::min<std::size_t>(called_, 1); }

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
void Finishers::take_ended(const engine::Operation& of_group) {
  for (auto next = local_.begin(); next != local_.end();) {
    const auto one = next++;
    if (one->operation->shares_group_with(of_group) && (one->operation->done() || !one->operation->is_local())) {
      ended_.splice(ended_.end(), local_, one);
    }
  }
}

void Finishers::wait_in_groups() {
  std::unique_lock lock(mutex_);
  come();
  while (!closed_) {
    if (!ended_.empty()) {
      follow_first(lock);
    } else if (std::shared_ptr<engine::Operation> operation = next_to_wait_for()) {
      wait_in_group(operation, lock);
    } else if (resting_ < kept_resting) {
      rest(lock);
    } else {
      return;
    }
  }
}

// What follows may wait for whatever else has ended or is open: another thread sees to that meanwhile.
void Finishers::follow_first(std::unique_lock<std::mutex>& lock) {
  {
    std::list<Expected> first;
    first.splice(first.end(), ended_, ended_.begin());
    call_one_if_needed();
    lock.unlock();
    Expected& one = first.front();
    if (one.operation->done()) {
      one.follow();
    } else {
      be_told(one.operation, std::move(one.follow));
    }
  }  // it goes without the lock
  lock.lock();
}

void Finishers::wait_in_group(const std::shared_ptr<engine::Operation>& operation, std::unique_lock<std::mutex>& lock) {
  waited_for_.push_back(operation);
  call_one_if_needed();
  lock.unlock();
  operation->wait_in_group([&] { return any_has_ended(*operation); }, turn_in_group);
  lock.lock();
  waited_for_.erase(std::find(waited_for_.begin(), waited_for_.end(), operation));
  take_ended(*operation);
}

void Finishers::rest(std::unique_lock<std::mutex>& lock) {
  ++resting_;
  {
    const engine::Resting resting;
    while (!closed_ && !has_any_for_groups()) {
      local_came_.wait(lock);
      come();
    }
  }
  --resting_;
}

}  // namespace shoal::doors
