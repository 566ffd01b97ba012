// The words that every layer shares: element types, operators, collectives.
//
// The numbers are those on the wire (docs/protocol.md, sections 4 and 6) and never change.
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

enum class Operator : std::uint8_t { none = 0, sum = 1, mean = 2, min = 3, max = 4, product = 5 };

enum class Collective : std::uint8_t {
  none = 0,
  all_reduce = 1,
  reduce_scatter = 2,
  broadcast = 3,
  all_gather = 4,
  all_to_all = 5,
  barrier = 6,
};

// Bytes of one element; 0 for `none` and for numbers that are no dtype.
std::size_t size_of(DType dtype);

// Whether a sum of it is rounded.
bool is_floating(DType dtype);

// All-gather and all-to-all: blocks of members are put together, of sizes that may differ; nothing is summed.
bool is_gather(Collective collective);

// Names for messages; "an unknown dtype" and the like for numbers that are none.
const char* name_of(DType dtype);
const char* name_of(Operator op);
const char* name_of(Collective collective);

}  // namespace shoal
