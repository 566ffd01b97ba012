// What tests of local groups need that run some ranks in one thread: a world that does the work on memory at once, and
// nothing else. Each test overrides what it looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/local/world.h"

namespace shoal {

struct IdleLocalWorld : sim::PromptWork<local::World> {
  void ring(std::uint32_t, bool) override {}
  void sending(std::uint64_t) override {}
  void finish(std::uint64_t, Status) override {}
  std::byte* allocate_output(std::uint64_t, const std::vector<std::uint64_t>&) override { return nullptr; }
  void warn(std::string) override {}
  void called(std::uint32_t, const wire::Opening&) override {}
  bool holds(const std::byte*, std::uint64_t) const override { return false; }
  void reach(std::uint32_t, std::size_t) override {}
  void detach(const std::byte*, std::uint64_t) override {}
  void hand_over(Submission) override {}
  void send_up(Submission, const std::optional<local::Chunks>&) override {}
  void contributed(std::uint64_t, Range) override {}
  void open_as_failed(Submission) override {}
  void fail_job(const Status&) override {}
  void empty() override {}
};

}  // namespace shoal
