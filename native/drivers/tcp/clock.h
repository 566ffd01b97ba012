// The driver's clock.
#pragma once

#include <chrono>

#include "protocol/machine.h"

namespace shoal::tcp {

inline Time now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace shoal::tcp
