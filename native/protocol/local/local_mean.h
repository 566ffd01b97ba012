// What a node adds up of an all-reduce that goes on to other nodes, and what is left for the servers to divide.
//
// A type whose sums are rounded goes up as the node's own mean, so that it does not overflow where the mean does not,
// and is rounded once (docs/decisions/several-nodes.md).
#pragma once

#include <cstdint>

#include "base/types.h"

namespace shoal::local {

struct LocalMean {
  Operator op = Operator::none;  // among the node's ranks
  double divisor = 1;            // of that
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
