// What worker and local group share about operations that do not move.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/machine.h"

namespace shoal {

// How long an operation may be without progress until it is asked whom it waits for; then at doubling intervals.
inline constexpr Time first_late = 10 * second;

inline std::string seconds_text(Time time) {
  const auto tenths = static_cast<std::uint64_t>(time / (second / 10));
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace shoal
