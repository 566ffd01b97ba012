// How ranks of a machine wake each other: a bell for each, in the memory that they share.
#pragma once

#include <cstdint>

#include "drivers/shm/memory.h"

namespace shoal::shm {

// Tells a rank that something which its open operations may wait for has happened. Wakes whoever works there, if that
// sleeps. `always`: also if it has no operations.
void ring(RankWords& words, bool always = false);

}  // namespace shoal::shm
