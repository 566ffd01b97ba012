// Completions as Python has them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "engine/completions.h"
#include "os/fork_guard.h"

namespace shoal::python {

// Left as it is in a forked child, where the threads that wait in it do not exist.
class CompletionQueue {
 public:
  // By threads that no signal comes to: in one piece.
  std::optional<std::uint64_t> next(double seconds) {
    const std::shared_ptr<engine::Completions> queue = shared();
    const nb::gil_scoped_release released;
    std::optional<std::uint64_t> token = queue->next(nanoseconds_of(seconds));
    if (!token.has_value() && queue->closed()) {
      throw std::runtime_error("closed: nobody is told of operations any more");
    }
    return token;
  }
  void add(std::uint64_t token) { shared()->add(token); }
  void close() { shared()->close(); }
  const std::shared_ptr<engine::Completions>& shared() const { return *queue_.operator->(); }

 private:
  os::ForkGuard<std::shared_ptr<engine::Completions>> queue_{
      std::make_unique<std::shared_ptr<engine::Completions>>(std::make_shared<engine::Completions>())};
};

}  // namespace shoal::python
