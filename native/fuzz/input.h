// Decisions of a fuzzer: the bytes of one input, taken one after another.
//
// Behind the end everything is 0, so every input means something and a shorter one is a simpler one. A choice
// takes one byte, so that an input with a byte more or less still means almost the same.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace shoal::fuzz {

// What must hold for every input. Ends the process in a way that the fuzzer takes for a finding.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
  }
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  std::uint8_t byte() {
    if (rest_.empty()) {
      return 0;
    }
    const std::uint8_t first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }

  // From 0 to count - 1; count is at most 256 and not 0.
  std::size_t below(std::size_t count) { return byte() % count; }
  bool once_in(std::size_t count) { return below(count) == count - 1; }

  template <class Entry, std::size_t count>
  const Entry& one_of(const std::array<Entry, count>& entries) {
    return entries[below(count)];
  }

  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= static_cast<std::uint64_t>(byte()) << (8 * i);
    }
    return value;
  }

  // A number that is likely to be near a limit: small, a power of two more or less a little, or any.
  std::uint64_t size() {
    const std::uint8_t way = byte();
    switch (way % 4) {
      case 0:
        return byte();
      case 1:
        return (std::uint64_t{1} << (way / 4)) + byte() - 128;
      case 2:
        return number(2);
      default:
        return number(8);
    }
  }

  // At most `most` bytes, and what is there of them.
  std::vector<std::byte> bytes(std::size_t most) {
    const auto taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    const auto* first = reinterpret_cast<const std::byte*>(taken.data());
    return {first, first + taken.size()};
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace shoal::fuzz

// What a fuzzer calls with each input (libFuzzer's interface), and replay.cpp with each file of the corpus.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
