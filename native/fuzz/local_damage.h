// Damage in the memory that the ranks of a machine share: another number in a word, in the head of a record that has
// not been read yet, anywhere in a mailbox, or in a slot.
#pragma once

#include <array>
#include <cstring>

#include "fuzz/input.h"
#include "protocol/local/group_memory.h"

namespace shoal::fuzz {

// A number that stands where `before` stood.
inline std::uint64_t other_number(std::uint64_t before, Input& input) {
  switch (input.below(4)) {
    case 0:
      return before + 1 + input.below(8);
    case 1:
      return before - 1 - input.below(8);
    case 2:
      return before + 64 * (1 + input.below(128));
    default:
      return input.size();
  }
}

inline void damage_word(const local::GroupMemory& memory, Input& input) {
  using local::RankWords;
  RankWords& words = memory.words(static_cast<std::uint32_t>(input.below(memory.ranks())));
  const std::size_t which = input.below(12);
  if (which < 4) {
    constexpr std::array counters{&RankWords::contributed, &RankWords::reduced, &RankWords::collected,
                                  &RankWords::delivered};
    local::Counter& counter = words.*counters[which];
    counter.store(other_number(counter.load(), input));
  } else if (which < 9) {
    constexpr std::array flags{&RankWords::blocked, &RankWords::gone, &RankWords::withdrawn, &RankWords::here,
                               &RankWords::left};
    (words.*flags[which - 4]).store(input.byte());
  } else {
    local::Counter& position = which == 9 ? words.written : words.read[input.below(memory.ranks())];
    position.store(other_number(position.load(), input));
  }
}

// Of the next record that this reader has before it, or of what lies there.
inline void damage_mailbox(const local::GroupMemory& memory, Input& input) {
  const auto writer = static_cast<std::uint32_t>(input.below(memory.ranks()));
  const auto reader = static_cast<std::uint32_t>(input.below(memory.ranks()));
  const std::size_t size = memory.shape().mailbox;
  std::size_t at = memory.words(reader).read[writer].load() % size;
  std::size_t width = 1;
  std::uint64_t value = 0;
  if (input.once_in(2)) {
    // The head: its length, its kind, those of its body and its data, and its key.
    constexpr std::array<std::size_t, 5> fields{0, 8, 12, 16, 24};
    const std::size_t field = input.below(fields.size());
    at += fields[field];
    width = field == 0 ? 8 : 4;
    std::memcpy(&value, memory.mailbox(writer) + std::min(at, size - width), width);
    value = other_number(value, input);
  } else {
    at += input.number(2) % 1024;
    width = std::array<std::size_t, 4>{1, 2, 4, 8}[input.below(4)];
    value = input.size();
  }
  std::memcpy(memory.mailbox(writer) + std::min(at, size - width), &value, width);
}

inline void damage_slot(const local::GroupMemory& memory, Input& input) {
  const auto rank = static_cast<std::uint32_t>(input.below(memory.ranks()));
  std::byte* const slot = input.once_in(2) ? memory.slot(input.byte(), rank) : memory.result(input.byte());
  slot[input.number(2) % memory.shape().slot] = static_cast<std::byte>(input.byte());
}

}  // namespace shoal::fuzz
