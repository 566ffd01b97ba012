// The words that every layer shares: element types, operators, collectives.
//
// The numbers are those on the wire (docs/protocol/format.md, Numbers) and never change. `last`: higher ones are
// refused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal {

enum class DType : std::uint8_t {
  none = 0,
  float32 = 1,
  float64 = 2,
  float16 = 3,
  bfloat16 = 4,
  int8 = 5,
  int16 = 6,
  int32 = 7,
  int64 = 8,
  uint8 = 9,
  uint16 = 10,
  uint32 = 11,
  uint64 = 12,
  boolean = 13,
};

enum class Operator : std::uint8_t { none = 0, sum = 1, mean = 2, min = 3, max = 4, product = 5, last = product };

enum class Collective : std::uint8_t {
  none = 0,
  all_reduce = 1,
  reduce_scatter = 2,
  broadcast = 3,
  all_gather = 4,
  all_to_all = 5,
  barrier = 6,
  last = barrier,
};

struct DTypeTraits {
  const char* name;  // for messages
  std::size_t size;  // bytes of one element; 0 for `none` and for numbers that are no dtype
  bool floating;     // a sum of it is rounded
  DType sums_in;     // the accumulator's type; the sum is rounded once, at the end
};
const DTypeTraits& traits_of(DType dtype);

inline std::size_t size_of(DType dtype) { return traits_of(dtype).size; }
inline bool is_floating(DType dtype) { return traits_of(dtype).floating; }
// Whether its accumulator is wider than an element, so that a partial sum does not fit into an element unrounded.
inline bool sums_widen(DType dtype) { return traits_of(dtype).sums_in != dtype; }

// Whether elements may be another dtype in frames than in arrays. Servers sum what is in the frames, in what that sums
// in; workers convert (worker/operation.cpp).
bool may_travel_as(DType dtype, DType wire);

// Names for messages; "an unknown dtype" and the like for numbers that are none.
inline const char* name_of(DType dtype) { return traits_of(dtype).name; }
const char* name_of(Operator op);

}  // namespace shoal
