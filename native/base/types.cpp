#include "base/types.h"

#include <array>

namespace shoal {

namespace {

constexpr DTypeTraits no_dtype{"an unknown dtype", 0, false, DType::none};

// By number. A new dtype also needs a format of its elements (reduce/formats.h).
constexpr std::array dtypes{
    DTypeTraits{"none", 0, false, DType::none},       DTypeTraits{"float32", 4, true, DType::float32},
    DTypeTraits{"float64", 8, true, DType::float64},  DTypeTraits{"float16", 2, true, DType::float32},
    DTypeTraits{"bfloat16", 2, true, DType::float32}, DTypeTraits{"int8", 1, false, DType::int8},
    DTypeTraits{"int16", 2, false, DType::int16},     DTypeTraits{"int32", 4, false, DType::int32},
    DTypeTraits{"int64", 8, false, DType::int64},     DTypeTraits{"uint8", 1, false, DType::uint8},
    DTypeTraits{"uint16", 2, false, DType::uint16},   DTypeTraits{"uint32", 4, false, DType::uint32},
    DTypeTraits{"uint64", 8, false, DType::uint64},   DTypeTraits{"bool", 1, false, DType::boolean},
};

constexpr std::array operators{"none", "sum", "mean", "min", "max", "product"};

}  // namespace

const DTypeTraits& traits_of(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  return number < dtypes.size() ? dtypes[number] : no_dtype;
}

bool may_travel_as(DType dtype, DType wire) { return wire == dtype; }

const char* name_of(Operator op) {
  const auto number = static_cast<std::size_t>(op);
  return number < operators.size() ? operators[number] : "an unknown operator";
}

}  // namespace shoal
