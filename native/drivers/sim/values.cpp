#include "drivers/sim/values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "drivers/sim/random.h"

namespace shoal::sim {

namespace {

float widen_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// All NaNs are one.
std::uint16_t narrow_bfloat16(float value) {
  if (std::isnan(value)) {
    return 0x7fc0;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float widen_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const float beyond = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                          : exponent == 31 ? beyond
                                           : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// To nearest even; all NaNs are one.
std::uint16_t narrow_float16(float value) {
  if (std::isnan(value)) {
    return 0x7e00;
  }
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0) {
    return sign;
  }
  if (magnitude >= 65520.0F) {
    return static_cast<std::uint16_t>(sign | 0x7c00);
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // The unit in the last place is 2^unit; below 2^-14 all numbers share the smallest one.
  const int unit = std::max(exponent - 11, -24);
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // Rounding up to the next power of two carries into the exponent by itself.
  const std::uint32_t base = static_cast<std::uint32_t>(unit + 24) << 10;
  return static_cast<std::uint16_t>(sign | (base + steps));
}

struct Float16 {
  using Stored = std::uint16_t;
  using Wide = float;
  static Wide widen(Stored value) { return widen_float16(value); }
  static Stored narrow(Wide value) { return narrow_float16(value); }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Wide = float;
  static Wide widen(Stored value) { return widen_bfloat16(value); }
  static Stored narrow(Wide value) { return narrow_bfloat16(value); }
};

template <class Float>
struct Plain {
  using Stored = Float;
  using Wide = Float;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return std::isnan(value) ? std::numeric_limits<Float>::quiet_NaN() : value; }
};

// Integers wrap: added and multiplied without a sign. `Stored` decides how they compare.
template <class Integer>
struct Wrapping {
  using Stored = Integer;
  using Wide = Integer;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
};

template <class Wide>
Wide apply(Wide a, Wide b, Operator op) {
  if constexpr (std::is_integral_v<Wide>) {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    switch (op) {
      case Operator::min:
        return std::min(a, b);
      case Operator::max:
        return std::max(a, b);
      case Operator::product:
        return static_cast<Wide>(x * y);
      default:
        return static_cast<Wide>(x + y);
    }
  } else {
    switch (op) {
      case Operator::min:
        return std::min(a, b);
      case Operator::max:
        return std::max(a, b);
      case Operator::product:
        return a * b;
      default:
        return a + b;
    }
  }
}

template <class Type>
Bytes combine_as(const std::vector<Bytes>& inputs, Operator op, double divisor) {
  using Stored = typename Type::Stored;
  Bytes result(inputs.front().size());
  for (std::size_t at = 0; at + sizeof(Stored) <= result.size(); at += sizeof(Stored)) {
    const auto element = [at](const Bytes& input) {
      Stored value;
      std::memcpy(&value, input.data() + at, sizeof value);
      return Type::widen(value);
    };
    auto sum = element(inputs.front());
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      sum = apply(sum, element(inputs[i]), op);
    }
    if (op == Operator::mean) {
      sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(divisor));
    }
    const Stored stored = Type::narrow(sum);
    std::memcpy(result.data() + at, &stored, sizeof stored);
  }
  return result;
}

template <class Type>
void fill_as(std::span<std::byte> bytes, Operator op, bool rough, Random random) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  for (std::size_t at = 0; at + sizeof(Stored) <= bytes.size(); at += sizeof(Stored)) {
    Wide value{};
    if constexpr (std::is_floating_point_v<Wide>) {
      const double whole =
          op == Operator::product ? random.pick({1.0, 2.0, -1.0}) : static_cast<double>(random.between(1, 9));
      value = static_cast<Wide>(rough ? (random.unit() + 0.01) * random.pick({1.0, -3.0, 0.001, 50.0}) : whole);
    } else {
      // Any bits: integers wrap, and the order does not matter.
      value = static_cast<Wide>(random.next());
    }
    const Stored stored = Type::narrow(value);
    std::memcpy(bytes.data() + at, &stored, sizeof stored);
  }
}

}  // namespace

void fill(std::span<std::byte> bytes, DType dtype, Operator op, bool rough, std::uint64_t seed) {
  const Random random(seed);
  switch (dtype) {
    case DType::float32:
      return fill_as<Plain<float>>(bytes, op, rough, random);
    case DType::float64:
      return fill_as<Plain<double>>(bytes, op, rough, random);
    case DType::float16:
      return fill_as<Float16>(bytes, op, rough, random);
    case DType::bfloat16:
      return fill_as<Bfloat16>(bytes, op, rough, random);
    case DType::boolean: {
      Random bits(seed);
      std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(bits.below(2)); });
      return;
    }
    default:
      return fill_as<Wrapping<std::uint8_t>>(bytes, op, rough, random);
  }
}

Bytes combine(const std::vector<Bytes>& inputs, DType dtype, Operator op, double divisor) {
  switch (dtype) {
    case DType::float32:
      return combine_as<Plain<float>>(inputs, op, divisor);
    case DType::float64:
      return combine_as<Plain<double>>(inputs, op, divisor);
    case DType::float16:
      return combine_as<Float16>(inputs, op, divisor);
    case DType::bfloat16:
      return combine_as<Bfloat16>(inputs, op, divisor);
    case DType::int8:
      return combine_as<Wrapping<std::int8_t>>(inputs, op, divisor);
    case DType::int16:
      return combine_as<Wrapping<std::int16_t>>(inputs, op, divisor);
    case DType::int32:
      return combine_as<Wrapping<std::int32_t>>(inputs, op, divisor);
    case DType::int64:
      return combine_as<Wrapping<std::int64_t>>(inputs, op, divisor);
    case DType::uint16:
      return combine_as<Wrapping<std::uint16_t>>(inputs, op, divisor);
    case DType::uint32:
      return combine_as<Wrapping<std::uint32_t>>(inputs, op, divisor);
    case DType::uint64:
      return combine_as<Wrapping<std::uint64_t>>(inputs, op, divisor);
    default:
      return combine_as<Wrapping<std::uint8_t>>(inputs, op, divisor);
  }
}

}  // namespace shoal::sim
