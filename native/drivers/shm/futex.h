// Sleeping on a word of memory that processes share.
//
// There may be two kinds of sleepers on a word, so that one of them can be woken and the other left asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::shm {

inline constexpr std::uint32_t waiters = 1;     // threads that wait for an operation
inline constexpr std::uint32_t attendants = 2;  // threads that do what is to be done meanwhile

// Returns when woken, after `longest`, or at once if the word is not `seen`; and sometimes for no reason.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds longest,
              std::uint32_t kind);

// Wakes all sleepers of that kind.
void wake(std::atomic<std::uint32_t>& word, std::uint32_t kind);

}  // namespace shoal::shm
