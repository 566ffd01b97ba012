// The same sums compiled for several instruction sets. For reduce.cpp and its test only: others use reduce.h.
//
// A backend is data, so that looking at it runs no instruction that the processor may lack.
#pragma once

#include <cstddef>
#include <vector>

#include "base/types.h"

namespace shoal::reduction {

// One call of reduce(), its arguments already checked.
struct Call {
  std::byte* destination;
  const std::byte* const* sources;
  std::size_t source_count;
  std::size_t count;
  DType dtype;
  Operator op;
  double divisor;
};

struct Backend {
  const char* name;
  void (*reduce)(const Call& call);  // null: this build has none, because the compiler was not told the instruction set
};

extern const Backend portable_backend;
extern const Backend avx2_backend;
extern const Backend avx512_backend;
extern const Backend neon_backend;

// The backends that this build has and this processor can run, fastest first. Never empty. All give the same bits.
std::vector<const Backend*> usable_backends();

}  // namespace shoal::reduction
