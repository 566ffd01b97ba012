// Builds with sanitizers and fuzzers (SHOAL_CHECKED) check a machine's invariants after each of its events.
#pragma once

#include "protocol/machine.h"

namespace shoal {

inline void check_after_event([[maybe_unused]] const Machine& machine) {
#ifdef SHOAL_CHECKED
  machine.check_invariants();
#endif
}

}  // namespace shoal
