// What a node adds up of an all-reduce, and what the servers do with it.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace shoal::shm {

struct Partial {
  Operator op = Operator::none;  // among the node's ranks
  double divisor = 1;            // of that
  double rest = 0;               // what the servers divide by
};

// `ranks`: in all; `largest`: of the largest node. Docs: decisions/inside-the-node.md.
inline Partial partial_of(DType dtype, Operator op, std::uint32_t ranks, std::uint32_t largest) {
  if (op != Operator::mean) {
    return {op, 1, 0};
  }
  const bool rounds = sums_widen(dtype);
  const double here = rounds ? largest : 1;
  return {rounds ? Operator::mean : Operator::sum, here, ranks / here};
}

}  // namespace shoal::shm
