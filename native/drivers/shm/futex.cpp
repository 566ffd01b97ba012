#include "drivers/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace shoal::shm {

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

std::uint32_t* address(std::atomic<std::uint32_t>& word) { return reinterpret_cast<std::uint32_t*>(&word); }

}  // namespace

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds longest,
              std::uint32_t kind) {
  // With a set of bits the time is that of a clock, not a span.
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  const std::int64_t nanoseconds = until.tv_nsec + std::max<std::int64_t>(longest.count(), 0);
  until.tv_sec += nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  ::syscall(SYS_futex, address(word), FUTEX_WAIT_BITSET, seen, &until, nullptr, kind);
}

void wake(std::atomic<std::uint32_t>& word, std::uint32_t kind) {
  ::syscall(SYS_futex, address(word), FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, kind);
}

}  // namespace shoal::shm
