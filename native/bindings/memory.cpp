// SharedMemory.
#include "drivers/shm/memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "bindings/bindings.h"

namespace shoal::python {

using namespace nb::literals;

void bind_memory(nb::module_& module) {
  nb::class_<shm::Memory>(module, "SharedMemory")
      .def(nb::new_([](std::uint32_t ranks, bool alone) {
             return std::make_shared<shm::Memory>(shm::shape_for(ranks, alone));
           }),
           "ranks"_a, "alone"_a)
      .def_static(
          "adopt",
          [](int descriptor, std::uint32_t ranks, bool alone) {
            return std::make_shared<shm::Memory>(os::Descriptor(descriptor), shm::shape_for(ranks, alone));
          },
          "fd"_a, "ranks"_a, "alone"_a)
      .def("fileno", &shm::Memory::descriptor)
      .def_prop_ro("why_no_arrays", &shm::Memory::why_no_regions);
}

}  // namespace shoal::python
