// The operators on two values, or element by element on two vectors.
//
// Internal linkage throughout, see conversions.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::reduction {
namespace {

template <class T>
inline bool is_nan(T) {
  return false;
}
inline bool is_nan(float value) { return value != value; }
inline bool is_nan(double value) { return value != value; }

// Operators work on these as on numbers, element by element (a GCC extension that Clang has too).
#if defined(SHOAL_REDUCE_NEON)
constexpr std::size_t vector_bytes = 16;
#else
constexpr std::size_t vector_bytes = 32;
#endif
typedef float Floats __attribute__((vector_size(vector_bytes)));
constexpr std::size_t vector_elements = sizeof(Floats) / sizeof(float);

#if defined(__F16C__) || defined(SHOAL_REDUCE_NEON)
typedef std::int32_t Mask __attribute__((vector_size(vector_bytes)));

inline Mask is_nan(Floats values) { return values != values; }
#endif

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Product {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a * b);
  }
  // Two uint16 would be promoted to int, whose overflow is undefined.
  static std::uint16_t apply(std::uint16_t a, std::uint16_t b) {
    return static_cast<std::uint16_t>(std::uint32_t{a} * std::uint32_t{b});
  }
};

// A NaN replaces a number, never the other way round. Of equal values (the two zeros) the first contribution's stays.
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return ((b < a) | is_nan(b)) ? b : a;
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) {
    return ((b > a) | is_nan(b)) ? b : a;
  }
};

// Of bools: 0 or 1.
struct And {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a & b; }
};

struct Or {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a | b; }
};

}  // namespace
}  // namespace shoal::reduction
