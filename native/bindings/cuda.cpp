// CudaDevice, Ways, Passage and Gate: how arrays of a CUDA device come to memory of the host and back.
//
// Addresses and streams are numbers, as frameworks give them (torch.Tensor.data_ptr(), torch.cuda.Stream.cuda_stream).
// Whoever calls keeps the memory until the passage is over. Gates, which native threads let go of, keep ways and
// device, and not the objects of Python's that these are known by.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "drivers/common/gate.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/passage.h"

namespace shoal::python {

namespace {

using namespace nb::literals;
using cuda::Device;
using cuda::Passage;
using cuda::Ways;

// Address on the host, address on the device, bytes.
using Copies = std::vector<std::tuple<std::uintptr_t, std::uint64_t, std::size_t>>;
using StreamNumber = std::uintptr_t;

cuda::Stream stream_of(StreamNumber number) { return reinterpret_cast<cuda::Stream>(number); }
StreamNumber number_of(cuda::Stream stream) { return reinterpret_cast<StreamNumber>(stream); }
std::byte* memory_at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

struct DeviceInPython {
  std::shared_ptr<Device> device;
};

struct WaysInPython {
  std::shared_ptr<Ways> ways;
};

void open(DeviceInPython* place, const std::string& library, int ordinal) {
  const nb::gil_scoped_release released;
  new (place) DeviceInPython{Device::open(library, ordinal)};
}

bool streams_can_wait(const DeviceInPython& self) { return self.device->streams_can_wait(); }

void pin(const DeviceInPython& self, std::uintptr_t address, std::size_t bytes) {
  const nb::gil_scoped_release released;
  self.device->pin(memory_at(address), bytes);
}

void unpin(const DeviceInPython& self, std::uintptr_t address, bool waits) {
  const nb::gil_scoped_release released;
  self.device->unpin(memory_at(address), waits);
}

void make_ways(WaysInPython* place, const DeviceInPython& device) {
  new (place) WaysInPython{std::make_shared<Ways>(device.device)};
}

void make_passage(Passage* place, const WaysInPython& ways) { new (place) Passage(ways.ways); }

void follow(Passage& passage, const std::vector<StreamNumber>& streams) {
  const nb::gil_scoped_release released;
  for (const StreamNumber stream : streams) {
    passage.follow(stream_of(stream));
  }
}

Gate depart(Passage& passage, const Copies& copies) {
  const nb::gil_scoped_release released;
  for (const auto& [host, there, bytes] : copies) {
    passage.bring(memory_at(host), there, bytes);
  }
  return passage.depart();
}

void take_back(Passage& passage, const Copies& copies) {
  const nb::gil_scoped_release released;
  for (const auto& [host, there, bytes] : copies) {
    passage.take_back(there, memory_at(host), bytes);
  }
}

// A method that may wait for the device, or for another thread's use of it.
template <class Class, class Result, class... Arguments>
auto without_gil(Result (Class::*method)(Arguments...)) {
  return [method](Class& self, Arguments... arguments) {
    const nb::gil_scoped_release released;
    return (self.*method)(arguments...);
  };
}

}  // namespace

void bind_cuda(nb::module_& module) {
  nb::class_<Gate>(module, "Gate")
      .def("is_open", &Gate::is_open)
      .def("is_passed", &Gate::is_passed)
      .def("leave", &Gate::pass);

  nb::class_<DeviceInPython>(module, "CudaDevice")
      .def("__init__", &open, "library"_a, "ordinal"_a)
      .def_prop_ro("streams_can_wait", &streams_can_wait)
      .def("pin", &pin, "address"_a, "nbytes"_a)
      .def("unpin", &unpin, "address"_a, "waits"_a);

  nb::class_<WaysInPython>(module, "Ways")
      .def("__init__", &make_ways, "device"_a)
      .def_prop_ro("out", [](const WaysInPython& self) { return number_of(self.ways->out()); })
      .def_prop_ro("back", [](const WaysInPython& self) { return number_of(self.ways->back()); });

  nb::class_<Passage>(module, "Passage")
      .def("__init__", &make_passage, "ways"_a)
      .def("follow", &follow, "streams"_a)
      .def("depart", &depart, "copies"_a)
      .def("begin_return", without_gil(&Passage::begin_return), "waits"_a)
      .def("take_back", &take_back, "copies"_a)
      .def("end_return", without_gil(&Passage::end_return))
      .def("has_returned", &Passage::has_returned)
      .def(
          "follow_back",
          [](Passage& passage, StreamNumber stream) {
            const nb::gil_scoped_release released;
            passage.follow_back(stream_of(stream));
          },
          "stream"_a)
      .def("is_over", without_gil(&Passage::is_over))
      .def("wait_until_over", without_gil(&Passage::wait_until_over));
}

}  // namespace shoal::python
