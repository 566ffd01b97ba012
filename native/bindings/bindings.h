// What the files of this folder share. Bindings hold no logic: they convert, keep memory alive, and release the GIL
// around whatever waits or copies much.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

namespace shoal::shm {
class Memory;
}

namespace shoal::python {

namespace nb = nanobind;

// Never nanobind/stl/shared_ptr.h: a std::shared_ptr that it makes of an argument owns the object of Python's, so the
// native thread that lets go of it last would wait for the GIL, and for ever if the interpreter has ended.
struct MemoryInPython {
  std::shared_ptr<shm::Memory> memory;
};

void bind_array(nb::module_& module);
void bind_functions(nb::module_& module);
void bind_cuda(nb::module_& module);
void bind_doors(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_server(nb::module_& module);
void bind_tls(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_ending(nb::module_& module);

inline std::string text_of(const nb::bytes& bytes) { return std::string(bytes.c_str(), bytes.size()); }

// Seconds as Python gives them, infinity included. At most about 30 years.
inline std::chrono::nanoseconds nanoseconds_of(double seconds) {
  constexpr double most = 1e9;
  const double bounded = std::isnan(seconds) ? 0.0 : std::clamp(seconds, 0.0, most);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(bounded));
}

// Calls `ready(longest)` without the GIL until it returns something true or `seconds` have passed. Waits in slices, and
// calls run_handlers() between them, so that Python's signal handlers run (and may raise). Returns the last answer.
template <class Ready, class RunHandlers>
auto wait_in_slices(double seconds, Ready ready, RunHandlers run_handlers) -> decltype(ready({})) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds(50);
  const Clock::time_point deadline = Clock::now() + nanoseconds_of(seconds);
  for (;;) {
    const std::chrono::nanoseconds rest = std::max(deadline - Clock::now(), Clock::duration::zero());
    {
      const nb::gil_scoped_release released;
      if (auto answer = ready(std::min(rest, slice))) {
        return answer;
      }
    }
    if (run_handlers() != 0) {
      throw nb::python_error();
    }
    if (rest <= slice) {
      return {};
    }
  }
}

}  // namespace shoal::python
