#include "wire/crc32c.h"

#include <array>

#if defined(__aarch64__)
#include <arm_acle.h>
#endif

#include "base/processor.h"
#include "wire/bytes.h"

namespace shoal::wire {

namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1) != 0 ? (value >> 1) ^ 0x82F63B78U : value >> 1;
    }
    table[i] = value;
  }
  return table;
}

constexpr auto table = make_table();

constexpr std::uint32_t by_table(std::span<const std::byte> bytes) {
  std::uint32_t value = 0xFFFFFFFFU;
  for (std::byte byte : bytes) {
    value = (value >> 8) ^ table[(value ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  }
  return ~value;
}

constexpr std::uint32_t check_of_digits() {
  std::array<std::byte, 9> digits{};
  for (std::size_t i = 0; i < digits.size(); ++i) {
    digits[i] = static_cast<std::byte>('1' + i);
  }
  return by_table(digits);
}

static_assert(check_of_digits() == 0xE3069283U, "tests on a processor with the instruction do not reach the table");

#if defined(__x86_64__)
__attribute__((target("sse4.2,crc32"))) std::uint32_t by_instruction(std::span<const std::byte> bytes) {
  std::uint64_t wide = 0xFFFFFFFFU;
  for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
    wide = __builtin_ia32_crc32di(wide, get<std::uint64_t>(bytes.data()));
  }
  auto value = static_cast<std::uint32_t>(wide);
  for (std::byte byte : bytes) {
    value = __builtin_ia32_crc32qi(value, static_cast<std::uint8_t>(byte));
  }
  return ~value;
}
#elif defined(__aarch64__)
__attribute__((target("+crc"))) std::uint32_t by_instruction(std::span<const std::byte> bytes) {
  std::uint32_t value = 0xFFFFFFFFU;
  for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
    value = __crc32cd(value, get<std::uint64_t>(bytes.data()));
  }
  for (std::byte byte : bytes) {
    value = __crc32cb(value, static_cast<std::uint8_t>(byte));
  }
  return ~value;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (processor().crc32c) {
    return by_instruction(bytes);
  }
#endif
  return by_table(bytes);
}

}  // namespace shoal::wire
