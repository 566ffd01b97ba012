// float16 and bfloat16 to and from float32, written so that a compiler vectorises the loops around them.
//
// Promises: widening is exact, subnormals and infinities included. Narrowing rounds to nearest, ties to even, gives
// infinity beyond the largest finite value, and gives one NaN (positive, quiet, no payload) for every NaN. No float32
// subnormal is computed with, so a thread that flushes those to zero gets the same float16.
//
// Everything here and in kernels.h has internal linkage and calls nothing of the standard library but memcpy: these
// files are compiled once for each instruction set, and the linker must never merge the copies.
#pragma once

#include <cstdint>
#include <cstring>

namespace shoal::reduction {
namespace {

constexpr std::uint32_t float32_infinity = 0x7f800000;
constexpr std::uint32_t float32_magnitude = 0x7fffffff;

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bfloat16_to_float32(std::uint16_t value) { return float_of(std::uint32_t{value} << 16); }

inline std::uint16_t float32_to_bfloat16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t to_even = 0x7fff + ((bits >> 16) & 1);
  const std::uint32_t rounded = (bits + to_even) >> 16;  // a carry runs into the exponent, up to infinity, as it should
  return static_cast<std::uint16_t>((bits & float32_magnitude) > float32_infinity ? 0x7fc0 : rounded);
}

inline float float16_to_float32(std::uint16_t value) {
  constexpr std::uint32_t rebias = (127 - 15) << 23;
  constexpr std::uint32_t smallest_normal = (127 - 14) << 23;
  const std::uint32_t magnitude = value & 0x7fffu;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + rebias;
  // A subnormal is the fraction of a number that has the smallest normal's exponent.
  const std::uint32_t subnormal = bits_of(float_of(shifted | smallest_normal) - float_of(smallest_normal));
  const std::uint32_t finite = magnitude < 0x0400 ? subnormal : normal;
  const std::uint32_t absolute = magnitude < 0x7c00 ? finite : (shifted | float32_infinity);
  return float_of(absolute | ((value & 0x8000u) << 16));
}

inline std::uint16_t float32_to_float16(float value) {
  constexpr std::uint32_t rebias = (127 - 15) << 10;
  constexpr std::uint32_t smallest_normal = (127 - 14) << 23;
  constexpr std::uint32_t beyond_finite = (127 + 16) << 23;
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = bits & float32_magnitude;
  const std::uint32_t to_even = 0xfff + ((magnitude >> 13) & 1);
  const std::uint32_t normal = ((magnitude + to_even) >> 13) - rebias;
  // The last place of 0.5 in float32 is float16's smallest subnormal: the addition does the rounding.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const std::uint32_t finite = magnitude < smallest_normal ? subnormal : normal;
  const std::uint32_t number = magnitude < beyond_finite ? finite : 0x7c00;
  const std::uint32_t result = number | ((bits >> 16) & 0x8000);
  return static_cast<std::uint16_t>(magnitude > float32_infinity ? 0x7e00 : result);
}

}  // namespace
}  // namespace shoal::reduction
