// Little-endian numbers to and from bytes, on any machine; and a reader that never reads past the end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace shoal::wire {

static_assert(std::endian::native == std::endian::little, "big-endian machines need byte swaps in native/wire/bytes.h");

template <class Number>
void put(std::byte* to, Number value) {
  static_assert(std::is_trivially_copyable_v<Number>);
  std::memcpy(to, &value, sizeof value);
}

template <class Number>
Number get(const std::byte* from) {
  static_assert(std::is_trivially_copyable_v<Number>);
  Number value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Number>
void append(std::vector<std::byte>& bytes, Number value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  put(bytes.data() + at, value);
}

inline void append_text(std::vector<std::byte>& bytes, const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), data, data + text.size());
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace shoal::wire
