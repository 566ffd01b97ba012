// What an accelerator and the engine tell each other of one operation, in two words of the host's memory that the
// accelerator reads and writes by itself: its input is there; it is done. Whoever completes operations calls no library
// for that, and waits for nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace shoal {

using GateWord = std::atomic<std::uint32_t>;
static_assert(GateWord::is_always_lock_free && sizeof(GateWord) == sizeof(std::uint32_t));

// A value of a word that only rises, and may pass the largest number.
inline bool has_come_to(const GateWord& word, std::uint32_t value) {
  return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - value) >= 0;
}

// Words keep the memory that they lie in. Whoever submits an operation with a gate keeps its output until the gate has
// been passed, which may be after the operation has ended as failed.
struct Gate {
  // The input is there when the word has come to this value.
  std::shared_ptr<const GateWord> ready;
  std::uint32_t ready_at = 0;
  // Gets this value when the output is whole, or when the operation has failed.
  std::shared_ptr<GateWord> done;
  std::uint32_t done_value = 0;
  // Why the input will never be there; empty: it may. Null: nobody knows. Asked seldom, of a gate that stays closed, by
  // a thread that may call the accelerator's library.
  std::function<std::string()> problem;

  bool is_open() const { return has_come_to(*ready, ready_at); }
  bool is_passed() const { return has_come_to(*done, done_value); }
  void pass() const { done->store(done_value, std::memory_order_release); }
};

}  // namespace shoal
