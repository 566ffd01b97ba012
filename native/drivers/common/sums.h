// Carries out a sum that a machine asks for.
#pragma once

#include "protocol/machine.h"
#include "reduce/reduce.h"

namespace shoal {

inline void carry_out(const Sum& sum) {
  reduce(sum.destination, sum.sources, sum.count, sum.dtype, sum.op, sum.divisor);
}

}  // namespace shoal
