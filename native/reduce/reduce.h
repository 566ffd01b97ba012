// The sums: n contributions in, one result out, for every dtype and operator.
//
// Promises:
//   * Contributions are combined in the order of `sources`, so the same inputs give the same bits on every run and on
//     every machine: the vector width never changes the order of a sum, and no multiply is fused into an add.
//   * float16 and bfloat16 accumulate in float32 and are rounded once, to nearest even.
//   * `destination` may be one of the sources; otherwise no two of them overlap. Arrays need no alignment.
//   * The rounding mode of the calling thread, and whether it flushes subnormals, change nothing.
//   * min and max give NaN if any contribution is NaN.
//   * Integers wrap; their mean is the wrapped sum divided toward zero.
//   * bool: min is and, max is or, product is and.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace shoal {

// Whether `op` means something for `dtype`: bool has neither sum nor mean; `none` never does.
bool reducible(DType dtype, Operator op);

// destination[i] = sources[0][i] op sources[1][i] op ... for `count` elements; mean then divides by `divisor`
// (the number of ranks; ignored by other operators; of integers at least 1). Requires at least one source and
// reducible(dtype, op).
void reduce(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
            Operator op, double divisor);

// The instruction set chosen at run time, for reports: "avx512", "avx2", "neon" or "portable".
const char* reduce_backend();

}  // namespace shoal
