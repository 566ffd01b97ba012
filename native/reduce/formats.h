// How the elements of each dtype lie in memory, and what they accumulate in.
//
// A format widens an element to its accumulator exactly, and narrows an accumulator to an element with one rounding.
//
// Internal linkage throughout, see conversions.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(SHOAL_REDUCE_NEON)
#include <arm_neon.h>
#endif

#include "reduce/conversions.h"
#include "reduce/operators.h"

namespace shoal::reduction {
namespace {

// Elements may lie at any address.
template <class T>
inline T load(const std::byte* base, std::size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
inline void store(std::byte* base, std::size_t index, T value) {
  std::memcpy(base + index * sizeof(T), &value, sizeof(T));
}

template <class T>
struct Integer {
  using Element = T;
  using Accumulator = T;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};

// Processors differ in which NaN an operation gives, so results use one NaN.
struct Float32 {
  using Element = float;
  using Accumulator = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return is_nan(value) ? __builtin_nanf("") : value; }
};

struct Float64 {
  using Element = double;
  using Accumulator = double;
  static double widen(double value) { return value; }
  static double narrow(double value) { return is_nan(value) ? __builtin_nan("") : value; }
};

// Whatever byte is not 0 is true.
struct Boolean {
  using Element = std::uint8_t;
  using Accumulator = std::uint8_t;
  static std::uint8_t widen(std::uint8_t value) { return value != 0; }
  static std::uint8_t narrow(std::uint8_t value) { return value; }
};

struct Bfloat16 {
  using Element = std::uint16_t;
  using Accumulator = float;
  static float widen(std::uint16_t value) { return bfloat16_to_float32(value); }
  static std::uint16_t narrow(float value) { return float32_to_bfloat16(value); }
};

struct Float16 {
  using Element = std::uint16_t;
  using Accumulator = float;
  static float widen(std::uint16_t value) { return float16_to_float32(value); }
  static std::uint16_t narrow(float value) { return float32_to_float16(value); }

  // Where the processor can convert, whole vectors use its instructions, with the same bits as above. AVX-512 uses 256
  // bits too, since conversion does not limit the sum.
#if defined(__F16C__)
  static Floats widen_vector(const std::byte* source, std::size_t index) {
    const std::byte* address = source + index * sizeof(Element);
    return Floats(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address))));
  }
  static void narrow_vector(Floats values, std::byte* destination, std::size_t index) {
    const Floats one_nan = Floats{} + __builtin_nanf("");
    const Floats numbers = is_nan(values) ? one_nan : values;
    const __m128i halves = _mm256_cvtps_ph(__m256(numbers), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination + index * sizeof(Element)), halves);
  }
#elif defined(SHOAL_REDUCE_NEON)
  static Floats widen_vector(const std::byte* source, std::size_t index) {
    std::uint16_t halves[vector_elements];
    std::memcpy(halves, source + index * sizeof(Element), sizeof halves);
    return Floats(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))));
  }
  static void narrow_vector(Floats values, std::byte* destination, std::size_t index) {
    const Floats one_nan = Floats{} + __builtin_nanf("");
    const Floats numbers = is_nan(values) ? one_nan : values;
    std::uint16_t halves[vector_elements];
    vst1_u16(halves, vreinterpret_u16_f16(vcvt_f16_f32(float32x4_t(numbers))));
    std::memcpy(destination + index * sizeof(Element), halves, sizeof halves);
  }
#endif
};

template <class Format>
constexpr bool has_vectors = false;
#if defined(__F16C__) || defined(SHOAL_REDUCE_NEON)
template <>
constexpr bool has_vectors<Float16> = true;
#endif

}  // namespace
}  // namespace shoal::reduction
