#include "os/descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace shoal::os {

namespace {

// All open descriptors of this process. Never destroyed: threads may outlive static objects at exit.
struct Registry {
  std::mutex mutex;
  std::vector<int> open;  // guarded by mutex
  std::atomic<std::uint64_t> generation{0};
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

// fork() is bracketed by the lock, so that the child finds the list whole. The child may only do what is safe in a
// signal handler: close() is, and clear() of a vector of int frees nothing.
void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }
void after_fork_in_child() {
  Registry& all = registry();
  for (int number : all.open) {
    ::close(number);
  }
  all.open.clear();
  all.generation.fetch_add(1, std::memory_order_relaxed);
  all.mutex.unlock();
}

void watch_forks() {
  static const int installed = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  static_cast<void>(installed);
}

}  // namespace

std::uint64_t fork_generation() { return registry().generation.load(std::memory_order_relaxed); }

Descriptor::Descriptor(int number) : number_(number), generation_(fork_generation()) {
  if (number < 0) {
    return;
  }
  watch_forks();
  ::fcntl(number, F_SETFD, FD_CLOEXEC);
  const std::lock_guard lock(registry().mutex);
  registry().open.push_back(number);
}

void Descriptor::reset() {
  const int number = std::exchange(number_, -1);
  if (number < 0 || generation_ != fork_generation()) {
    return;
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto place = std::find(all.open.begin(), all.open.end(), number);
  if (place != all.open.end()) {
    *place = all.open.back();
    all.open.pop_back();
  }
  ::close(number);
}

}  // namespace shoal::os
