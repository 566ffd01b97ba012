// Inputs drawn from a seed, and the results that they must have: sums in the order of the group's members, computed
// the plain way, independently of native/reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "drivers/sim/network.h"

namespace shoal::sim {

// Fills `bytes` with elements of `dtype`: any integers; floats so small and whole that every sum is exact, or, if
// `rough`, such that the order of a sum matters.
void fill(std::span<std::byte> bytes, DType dtype, Operator op, bool rough, std::uint64_t seed);

// The result of one operator over whole inputs of equal size, in their order; 16-bit types in float32, rounded once.
// `divisor`: of a mean.
Bytes combine(const std::vector<Bytes>& inputs, DType dtype, Operator op, double divisor);

}  // namespace shoal::sim
