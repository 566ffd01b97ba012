// What tests of local groups need that run some ranks in one thread: a world that does the work on memory at once, and
// nothing else. Each test overrides what it looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/local/world.h"
#include "reduce/reduce.h"

namespace shoal {

struct IdleLocalWorld : local::World {
  void ring(std::uint32_t, bool) override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override {
    reduce(destination, sources, count, dtype, op, divisor);
  }
  void sending(std::uint64_t) override {}
  void finish(std::uint64_t, Status) override {}
  std::byte* allocate_output(std::uint64_t, const std::vector<std::uint64_t>&) override { return nullptr; }
  void warn(std::string) override {}
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
