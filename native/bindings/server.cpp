// Server: a dedicated server for any number of jobs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "drivers/common/connection.h"
#include "drivers/tcp/dedicated.h"

namespace shoal::python {

namespace {

using namespace nb::literals;
using tcp::DedicatedServer;

void attach(DedicatedServer& server, const nb::bytes& incarnation, std::uint32_t index, std::uint32_t attempt,
            std::uint32_t rank, Connection&& connection, const JobConfig& config) {
  const std::string key = text_of(incarnation);
  const auto socket = connection.take<tcp::Socket>();
  if (socket == nullptr) {
    throw std::invalid_argument("this connection was handed over before");
  }
  const nb::gil_scoped_release released;
  server.attach(key, index, attempt, rank, std::move(*socket), config);
}

// Empty, or what to tell the job.
std::string reserve(DedicatedServer& server, const nb::bytes& incarnation, std::uint32_t index,
                    const JobConfig& config) {
  return server.reserve(text_of(incarnation), index, config);
}

void release(DedicatedServer& server, const nb::bytes& incarnation) { server.release(text_of(incarnation)); }

// The workers learn of the end by their broken links; the reason is for the caller's log.
void end_job(DedicatedServer& server, const nb::bytes& incarnation, const std::string& /*reason*/) {
  const std::string key = text_of(incarnation);
  const nb::gil_scoped_release released;
  server.end_job(key);
}

nb::list jobs(const DedicatedServer& server) {
  nb::list incarnations;
  for (const std::string& incarnation : server.jobs()) {
    incarnations.append(nb::bytes(incarnation.data(), incarnation.size()));
  }
  return incarnations;
}

}  // namespace

void bind_server(nb::module_& module) {
  nb::class_<DedicatedServer>(module, "Server")
      .def(nb::init<std::uint32_t, std::size_t>(), "proxies"_a, "memory"_a = 0)
      .def("reserve", &reserve, "incarnation"_a, "index"_a, "config"_a)
      .def("release", &release, "incarnation"_a)
      .def("attach", &attach, "incarnation"_a, "index"_a, "attempt"_a, "rank"_a, "socket"_a, "config"_a)
      .def("end_job", &end_job, "incarnation"_a, "reason"_a)
      .def("jobs", &jobs)
      .def("close", &DedicatedServer::close, nb::call_guard<nb::gil_scoped_release>())
      .def("statistics", &DedicatedServer::statistics);
}

}  // namespace shoal::python
