// What tests of one state machine need that play the rest of its job: a world in which nothing happens, and frames that
// come in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/machine.h"

namespace shoal {

// What a worker does: nothing. Each test overrides what it looks at.
struct IdleWorkerWorld : WorkerWorld {
  void send(LinkId, const wire::Header&, Bytes, std::span<const std::byte>, Token) override {}
  void detach(Token) override {}
  void close(LinkId) override {}
  void sum(Sum) override {}
  void sending(std::uint64_t) override {}
  void finish(std::uint64_t, Status) override {}
  std::byte* allocate_output(std::uint64_t, const std::vector<std::uint64_t>&) override { return nullptr; }
  void connect(std::uint32_t) override {}
  void connect_server(std::uint32_t, std::uint32_t) override {}
  void warn(std::string) override {}
  void ended() override {}
  std::uint64_t retransmissions(LinkId) const override { return 0; }
};

// A frame comes in, as a driver hands it over.
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
