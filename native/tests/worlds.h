// What a worker does, for tests that play the rest of its job: nothing. Each overrides what it looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/machine.h"

namespace shoal {

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

}  // namespace shoal
