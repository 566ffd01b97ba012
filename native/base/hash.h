// FNV-1a with 128 bits: names operations and groups (docs/protocol/format.md, Openings).
//
// Not a defence: ranks of a job trust each other. With 128 bits, a collision by chance takes about 2^64 names.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

namespace shoal {

struct Hash128 {
  std::array<std::byte, 16> bytes{};

  friend auto operator<=>(const Hash128&, const Hash128&) = default;
  // Two words: std::byte keeps the library from comparing arrays of it other than byte by byte.
  friend bool operator==(const Hash128& a, const Hash128& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), sizeof a.bytes) == 0;
  }
};

class Hasher {
 public:
  Hasher& add(std::span<const std::byte> bytes) {
    for (std::byte byte : bytes) {
      state_ ^= static_cast<Wide>(byte);
      state_ *= prime;
    }
    return *this;
  }
  Hasher& add(const std::string& text) { return add(std::as_bytes(std::span(text.data(), text.size()))); }
  template <class Number>
  Hasher& add_number(Number value) {
    static_assert(std::is_integral_v<Number>);
    return add(std::as_bytes(std::span(&value, 1)));
  }
  Hash128 digest() const {
    Hash128 hash;
    std::memcpy(hash.bytes.data(), &state_, sizeof state_);
    return hash;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr Wide offset_basis = (static_cast<Wide>(0x6c62272e07bb0142ULL) << 64) | 0x62b821756295c58dULL;
  static constexpr Wide prime = (static_cast<Wide>(0x0000000001000000ULL) << 64) | 0x13bULL;

  Wide state_ = offset_basis;
};

// The hash as a little-endian number, modulo `divisor`.
inline std::uint64_t modulo(const Hash128& hash, std::uint64_t divisor) {
  __extension__ unsigned __int128 number;
  std::memcpy(&number, hash.bytes.data(), sizeof number);
  return static_cast<std::uint64_t>(number % divisor);
}

}  // namespace shoal

template <>
struct std::hash<shoal::Hash128> {
  std::size_t operator()(const shoal::Hash128& value) const noexcept {
    std::size_t part;
    std::memcpy(&part, value.bytes.data(), sizeof part);
    return part;
  }
};
