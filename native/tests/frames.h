// A frame comes in at a state machine, as a driver hands it over.
#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/machine.h"

namespace shoal {

inline Status frame(Machine& machine, LinkId link, wire::Header header, const Bytes& payload) {
  header.length = static_cast<std::uint32_t>(payload.size());
  const Placement placement = machine.on_header(link, header);
  if (!placement.status.ok()) {
    return placement.status;
  }
  std::copy(payload.begin(), payload.end(), placement.memory);
  Status status = machine.on_payload(link);
  machine.check_invariants();
  return status;
}

}  // namespace shoal
