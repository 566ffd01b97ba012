// How ranks of a machine wake each other: each has a bell in the shared memory.
#pragma once

#include <cstdint>

#include "drivers/shm/memory.h"

namespace shoal::shm {

// Tells a rank that something has happened for which its open operations may wait, and wakes its sleeping threads.
// `always`: also if it has no open operations.
void ring(RankWords& words, bool always = false);

}  // namespace shoal::shm
