// SharedMemory.
#include "drivers/shm/memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "bindings/bindings.h"

namespace shoal::python {

using namespace nb::literals;

namespace {

void make(MemoryInPython* place, std::uint32_t ranks, bool alone) {
  new (place) MemoryInPython{std::make_shared<shm::Memory>(shm::shape_for(ranks, alone))};
}

MemoryInPython adopt(int descriptor, std::uint32_t ranks, bool alone) {
  return {std::make_shared<shm::Memory>(os::Descriptor(descriptor), shm::shape_for(ranks, alone))};
}

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<MemoryInPython>(module, "SharedMemory")
      .def("__init__", &make, "ranks"_a, "alone"_a)
      .def_static("adopt", &adopt, "fd"_a, "ranks"_a, "alone"_a)
      .def("fileno", [](const MemoryInPython& self) { return self.memory->descriptor(); })
      .def_prop_ro("why_no_arrays", [](const MemoryInPython& self) { return self.memory->why_no_regions(); });
}

}  // namespace shoal::python
