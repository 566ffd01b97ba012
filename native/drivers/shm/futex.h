// Sleeping on a word of memory that processes share.
//
// There are two kinds of sleepers on a word. One kind can be woken without the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::shm {

inline constexpr std::uint32_t waiters = 1;     // threads that wait for an operation
inline constexpr std::uint32_t attendants = 2;  // threads that work while nobody waits

// Returns when woken, after `longest`, or at once if the word is not `seen`. May return spuriously.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds longest,
              std::uint32_t kind);

// Wakes all sleepers of that kind.
void wake(std::atomic<std::uint32_t>& word, std::uint32_t kind);

}  // namespace shoal::shm
