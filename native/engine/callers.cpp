#include "engine/callers.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "os/descriptor.h"

namespace shoal::engine {

namespace {

struct Thread;

// Of one process. That of the parent is left as it is in a child, where its lock may be held by nobody.
struct Registry {
  const std::uint64_t generation = os::fork_generation();
  std::atomic<std::int64_t> callbacks{0};
  std::atomic<std::uint64_t> callback_changes{0};
  std::mutex mutex;
  std::unordered_set<Thread*> threads;  // guarded by mutex
  std::uint64_t changes_of_ended = 0;   // guarded by mutex
};

Registry& registry() {
  static std::atomic<Registry*> current{new Registry()};
  Registry* found = current.load();
  while (found->generation != os::fork_generation()) {
    auto* fresh = new Registry();
    if (current.compare_exchange_strong(found, fresh)) {
      return *fresh;
    }
    delete fresh;
  }
  return *found;
}

struct Thread {
  Thread() { enter(registry()); }
  ~Thread() {
    if (at->generation == os::fork_generation()) {
      const std::lock_guard lock(at->mutex);
      at->threads.erase(this);
      at->changes_of_ended += changes + 1;
    }
  }
  void enter(Registry& where) {
    at = &where;
    const std::lock_guard lock(at->mutex);
    at->threads.insert(this);
  }
  void change() { changes.fetch_add(1); }

  const std::uint64_t self = ::pthread_self();
  Registry* at = nullptr;
  std::atomic<std::uint64_t> blocked_by{0};
  std::atomic<bool> rests{false};
  std::atomic<std::uint64_t> changes{1};
};

Thread& this_thread() {
  thread_local Thread thread;
  if (thread.at->generation != os::fork_generation()) {
    thread.enter(registry());
  }
  return thread;
}

}  // namespace

void note_call() { this_thread().change(); }

BlockedBy::BlockedBy(std::uint64_t handle) : before_(this_thread().blocked_by.load()) {
  Thread& thread = this_thread();
  thread.change();
  thread.blocked_by.store(handle);
}

BlockedBy::~BlockedBy() {
  Thread& thread = this_thread();
  thread.change();
  thread.blocked_by.store(before_);
}

Awake::Awake() : before_(this_thread().blocked_by.exchange(0)) {}

Awake::~Awake() { this_thread().blocked_by.store(before_); }

Resting::Resting() {
  Thread& thread = this_thread();
  thread.change();
  thread.rests.store(true);
}

Resting::~Resting() {
  Thread& thread = this_thread();
  thread.change();
  thread.rests.store(false);
}

void count_callbacks(std::int64_t more) {
  Registry& all = registry();
  all.callback_changes.fetch_add(1);
  all.callbacks.fetch_add(more);
}

Callers look_at_callers() {
  Registry& all = registry();
  Callers found;
  const std::lock_guard lock(all.mutex);
  found.changes = all.changes_of_ended + all.callback_changes.load();
  found.blocked = all.callbacks.load() == 0;
  for (const Thread* thread : all.threads) {
    found.changes += thread->changes.load();
    if (thread->rests.load()) {
      continue;
    }
    found.any = true;
    const std::uint64_t handle = thread->blocked_by.load();
    found.blocked = found.blocked && handle != 0;
    found.handles.push_back(handle);
  }
  return found;
}

std::vector<std::uint64_t> threads_of_callers() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::uint64_t> threads;
  for (const Thread* thread : all.threads) {
    threads.push_back(thread->self);
  }
  return threads;
}

}  // namespace shoal::engine
