// The door of this process for frameworks that call operations from C++ (doors/door.h).
#include "doors/door.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "doors/table.h"

namespace shoal::python {

namespace {

using namespace nb::literals;

std::int64_t add_group(std::uint32_t group, std::uint32_t members, std::uint32_t index, double timeout) {
  const nb::gil_scoped_release released;
  return doors::add_group(group, {members, index}, nanoseconds_of(timeout).count());
}

std::pair<std::uint32_t, std::uint32_t> place(std::int64_t group) {
  const doors::Place found = doors::place(group);
  return {found.members, found.index};
}

}  // namespace

void bind_doors(nb::module_& module) {
  module.def("add_door_group", &add_group, "group"_a, "members"_a, "index"_a, "timeout"_a);
  module.def("door_place", &place, "group"_a);
  module.def("door_table", [] { return reinterpret_cast<std::uintptr_t>(&doors::table()); });
}

}  // namespace shoal::python
