// The bits of the sums as numbers in this file, which every processor and compiler must give: ranks of one job may have
// different ones. reduce_test.cpp compares with a reference that is compiled beside the kernels; this compares with
// what other machines gave.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "base/types.h"
#include "check.h"
#include "reduce/backends.h"
#include "reduce/reduce.h"

namespace {

using shoal::DType;
using shoal::Operator;

constexpr std::size_t sources = 5;
constexpr std::size_t count = 4099;

// Where the exponent of a floating dtype stands, in bits; no bits for other dtypes.
struct Exponent {
  unsigned int first;
  unsigned int bits;
};

Exponent exponent_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return {10, 5};
    case DType::bfloat16:
      return {7, 8};
    case DType::float32:
      return {23, 8};
    case DType::float64:
      return {52, 11};
    default:
      return {0, 0};
  }
}

// Any bits, but three floats of four lie between 1/16 and 16, so that sums are rounded and not only swallowed. The
// standard library's distributions would give other numbers with another library.
std::vector<std::byte> numbers(DType dtype, std::mt19937_64& random) {
  const std::size_t size = shoal::size_of(dtype);
  const auto [first, bits] = exponent_of(dtype);
  std::vector<std::byte> bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t number = random();
    if (const std::uint64_t choice = random(); bits != 0 && choice % 4 != 0) {
      const std::uint64_t exponent = (std::uint64_t{1} << (bits - 1)) - 5 + choice / 4 % 8;
      number &= ~(((std::uint64_t{1} << bits) - 1) << first);
      number |= exponent << first;
    }
    // The lowest bytes: all processors that Shoal knows are little-endian.
    std::memcpy(bytes.data() + i * size, &number, size);
  }
  return bytes;
}

// FNV-1a.
std::uint64_t digest(std::uint64_t before, const std::vector<std::byte>& bytes) {
  for (const std::byte byte : bytes) {
    before = (before ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3U;
  }
  return before;
}

std::uint64_t digest_of(const shoal::reduction::Backend& backend, DType dtype) {
  std::mt19937_64 random(static_cast<std::uint64_t>(dtype));
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> pointers;
  for (std::size_t k = 0; k < sources; ++k) {
    inputs.push_back(numbers(dtype, random));
    pointers.push_back(inputs.back().data());
  }
  std::uint64_t all = 0xcbf29ce484222325U;
  for (int number = 1; number <= 5; ++number) {
    const auto op = static_cast<Operator>(number);
    if (shoal::reducible(dtype, op)) {
      std::vector<std::byte> result(inputs.front().size());
      backend.reduce({result.data(), pointers.data(), sources, count, dtype, op, sources});
      all = digest(all, result);
    }
  }
  return all;
}

// In the order of DType, from 1.
constexpr std::array<std::uint64_t, 13> expected{
    0x3bc7a6564d4d829bU,  // float32
    0x4c2c1a0183e3bed6U,  // float64
    0xb9e9e824a03c2ad0U,  // float16
    0xfd9d9cc3449ae673U,  // bfloat16
    0xc7a58c0475680263U,  // int8
    0xac5dba6a6e42210fU,  // int16
    0x74d7b0e77281489dU,  // int32
    0x83bda8cd520a1d71U,  // int64
    0x382d61dd9ba988f4U,  // uint8
    0x0de89d809dcb7752U,  // uint16
    0x9d25a99f326c0fe5U,  // uint32
    0x232cb1148f9cb131U,  // uint64
    0xca42ecc368473cc0U,  // bool
};

}  // namespace

TEST(the_bits_of_every_dtype_are_those_that_other_processors_gave) {
  for (const shoal::reduction::Backend* backend : shoal::reduction::usable_backends()) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto dtype = static_cast<DType>(i + 1);
      const std::uint64_t found = digest_of(*backend, dtype);
      std::printf("  %s %s 0x%016llx\n", backend->name, shoal::name_of(dtype), static_cast<unsigned long long>(found));
      CHECK_EQ(found, expected[i]);
    }
  }
}

RUN_TESTS()
