// How a node and the servers share the work of a mean: what the node computes, and what the servers divide by.
//
// Of a type with wider sums the node sends its own mean up. So it does not overflow where the mean of all does not, and
// is rounded once (docs/decisions/several-nodes.md).
#pragma once

#include <cstdint>

#include "base/types.h"

namespace shoal::local {

struct LocalMean {
  Operator op = Operator::none;  // among the node's ranks
  double divisor = 1;            // for `op`
  double rest = 0;               // what the servers divide by
};

// `ranks`: in all; `largest`: of the largest node.
inline LocalMean local_mean_of(DType dtype, Operator op, std::uint32_t ranks, std::uint32_t largest) {
  if (op != Operator::mean) {
    return {op, 1, 0};
  }
  const bool rounds = sums_widen(dtype);
  const double here = rounds ? largest : 1;
  return {rounds ? Operator::mean : Operator::sum, here, ranks / here};
}

}  // namespace shoal::local
