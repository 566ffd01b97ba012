// The sums again, one element at a time and as plainly as they can be said, for reduce_test.cpp to compare with.
//
// ActiveWeights nothing with native/reduce but the interface: 16-bit floats are decoded and rounded by arithmetic
// (ldexp and nearbyint), integers are computed in 64 bits and cut off.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "base/types.h"

namespace shoal::tests {

using Bytes = std::vector<std::byte>;

template <class T>
T element(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void append(Bytes& bytes, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(T));
}

// A binary floating format of 16 bits: sign, exponent, fraction.
struct SmallFloat {
  int fraction_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int infinity() const { return ((1 << exponent_bits) - 1) << fraction_bits; }
  int nan() const { return infinity() | 1 << (fraction_bits - 1); }

  double decode(std::uint16_t bits) const {
    const int magnitude = bits & 0x7fff;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (magnitude >= infinity()) {
      return magnitude == infinity() ? sign * std::numeric_limits<double>::infinity()
                                     : std::numeric_limits<double>::quiet_NaN();
    }
    const int fraction = magnitude & ((1 << fraction_bits) - 1);
    const int exponent = magnitude >> fraction_bits;
    const int significand = exponent == 0 ? fraction : fraction | 1 << fraction_bits;
    return sign * std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias() - fraction_bits);
  }

  // The distance between neighbours at `value`.
  double last_place(double value) const {
    const int exponent = value == 0 ? 1 - bias() : std::max(std::ilogb(value), 1 - bias());
    return std::ldexp(1.0, exponent - fraction_bits);
  }

  // To nearest, ties to even (the processor's rounding mode, which nearbyint follows).
  std::uint16_t encode(double value) const {
    if (std::isnan(value)) {
      return static_cast<std::uint16_t>(nan());
    }
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    const double beyond = std::ldexp(1.0, bias() + 1);
    if (magnitude >= beyond) {
      return static_cast<std::uint16_t>(sign | infinity());
    }
    // Neighbours have neighbouring codes, so one place up from the largest finite number is infinity.
    const double unit = last_place(magnitude);
    const int places = static_cast<int>(std::nearbyint(magnitude / unit));
    const int exponent = std::ilogb(unit) + fraction_bits + bias();
    return static_cast<std::uint16_t>(sign | (((exponent - 1) << fraction_bits) + places));
  }
};

inline constexpr SmallFloat float16_format{10, 5};
inline constexpr SmallFloat bfloat16_format{7, 8};

template <class T>
T combine_floats(T a, T b, Operator op) {
  switch (op) {
    case Operator::sum:
    case Operator::mean:
      return a + b;
    case Operator::product:
      return a * b;
    case Operator::min:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : (b < a ? b : a);
    case Operator::max:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : (b > a ? b : a);
    case Operator::none:
      break;
  }
  throw std::logic_error("no such operator");
}

template <class T>
T combine_integers(T a, T b, Operator op) {
  const auto wide_a = static_cast<std::uint64_t>(a);
  const auto wide_b = static_cast<std::uint64_t>(b);
  switch (op) {
    case Operator::sum:
    case Operator::mean:
      return static_cast<T>(wide_a + wide_b);
    case Operator::product:
      return static_cast<T>(wide_a * wide_b);
    case Operator::min:
      return b < a ? b : a;
    case Operator::max:
      return b > a ? b : a;
    case Operator::none:
      break;
  }
  throw std::logic_error("no such operator");
}

// `T` is the type to accumulate in; `read(source, index)` gives one, `write` appends one to the result.
template <class T, class Read, class Write>
Bytes reference_floats(const std::vector<Bytes>& sources, std::size_t count, Operator op, double divisor, Read read,
                       Write write) {
  Bytes result;
  for (std::size_t i = 0; i < count; ++i) {
    T value = read(sources[0], i);
    for (std::size_t k = 1; k < sources.size(); ++k) {
      value = combine_floats<T>(value, read(sources[k], i), op);
    }
    if (op == Operator::mean) {
      value = value / static_cast<T>(divisor);
    }
    write(result, std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value);
  }
  return result;
}

template <class T>
Bytes reference_native(const std::vector<Bytes>& sources, std::size_t count, Operator op, double divisor) {
  return reference_floats<T>(sources, count, op, divisor, element<T>, append<T>);
}

inline Bytes reference_small(const std::vector<Bytes>& sources, std::size_t count, Operator op, double divisor,
                             const SmallFloat& format) {
  return reference_floats<float>(
      sources, count, op, divisor,
      [&](const Bytes& source, std::size_t i) {
        return static_cast<float>(format.decode(element<std::uint16_t>(source, i)));
      },
      [&](Bytes& result, float value) { append(result, format.encode(value)); });
}

template <class T>
Bytes reference_integers(const std::vector<Bytes>& sources, std::size_t count, Operator op, double divisor) {
  Bytes result;
  for (std::size_t i = 0; i < count; ++i) {
    T value = element<T>(sources[0], i);
    for (std::size_t k = 1; k < sources.size(); ++k) {
      value = combine_integers<T>(value, element<T>(sources[k], i), op);
    }
    if (op == Operator::mean) {
      const auto members = static_cast<__int128>(divisor);
      const auto sum = static_cast<__int128>(value);
      const __int128 magnitude = (sum < 0 ? -sum : sum) / members;
      value = static_cast<T>(sum < 0 ? -magnitude : magnitude);
    }
    append(result, value);
  }
  return result;
}

inline Bytes reference_booleans(const std::vector<Bytes>& sources, std::size_t count, Operator op) {
  Bytes result;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t trues = 0;
    for (const Bytes& source : sources) {
      trues += source[i] != std::byte{0};
    }
    append<std::uint8_t>(result, op == Operator::max ? trues > 0 : trues == sources.size());
  }
  return result;
}

// What reduce() must give, to the bit.
inline Bytes reference(const std::vector<Bytes>& sources, std::size_t count, DType dtype, Operator op, double divisor) {
  switch (dtype) {
    case DType::float32:
      return reference_native<float>(sources, count, op, divisor);
    case DType::float64:
      return reference_native<double>(sources, count, op, divisor);
    case DType::float16:
      return reference_small(sources, count, op, divisor, float16_format);
    case DType::bfloat16:
      return reference_small(sources, count, op, divisor, bfloat16_format);
    case DType::int8:
      return reference_integers<std::int8_t>(sources, count, op, divisor);
    case DType::int16:
      return reference_integers<std::int16_t>(sources, count, op, divisor);
    case DType::int32:
      return reference_integers<std::int32_t>(sources, count, op, divisor);
    case DType::int64:
      return reference_integers<std::int64_t>(sources, count, op, divisor);
    case DType::uint8:
      return reference_integers<std::uint8_t>(sources, count, op, divisor);
    case DType::uint16:
      return reference_integers<std::uint16_t>(sources, count, op, divisor);
    case DType::uint32:
      return reference_integers<std::uint32_t>(sources, count, op, divisor);
    case DType::uint64:
      return reference_integers<std::uint64_t>(sources, count, op, divisor);
    case DType::boolean:
      return reference_booleans(sources, count, op);
    case DType::none:
      break;
  }
  throw std::logic_error("no such dtype");
}

}  // namespace shoal::tests
