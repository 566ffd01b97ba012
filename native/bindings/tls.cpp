// Socket and Tls: connections on their way from Python to the core.
//
// A Tls is driven by Python while a job comes together, and goes on in the core. No native thread may drop a Python
// object, so Python holds a Tls by a pointer of its own, and the callback is forgotten at the end of the handshake.
#include "drivers/tcp/tls.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <string>

#include "bindings/bindings.h"
#include "drivers/common/connection.h"
#include "drivers/tcp/socket.h"

namespace shoal::python {

namespace {

using namespace nb::literals;
using tcp::Socket;
using tcp::Tls;

struct TlsInPython {
  std::shared_ptr<Tls> tls;
};

[[noreturn]] void raise_os_error(int error) {
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

TlsInPython client(std::string identity, const nb::bytes& key) {
  return {Tls::client(std::move(identity), text_of(key))};
}

TlsInPython server(nb::callable find_key) {
  return {Tls::server([find_key = std::move(find_key)](const std::string& identity) {
    return text_of(nb::cast<nb::bytes>(find_key(nb::bytes(identity.data(), identity.size()))));
  })};
}

const char* handshake(TlsInPython& self, int fd) {
  switch (self.tls->handshake(fd)) {
    case Tls::Step::done:
      return "done";
    case Tls::Step::wants_input:
      return "wants_input";
    case Tls::Step::wants_room:
      return "wants_room";
    case Tls::Step::unencrypted:
      return "unencrypted";
    case Tls::Step::wrong_key:
      return "wrong_key";
    case Tls::Step::failed:
      return "failed";
    case Tls::Step::ended:
      break;
  }
  if (self.tls->error() != 0) {
    raise_os_error(self.tls->error());
  }
  return "ended";
}

std::size_t send(TlsInPython& self, int fd, const nb::bytes& data) {
  const iovec vector{const_cast<char*>(data.c_str()), data.size()};
  ssize_t sent = 0;
  int error = 0;
  {
    const nb::gil_scoped_release released;
    sent = self.tls->send(fd, {&vector, 1});
    error = errno;
  }
  if (sent < 0) {
    raise_os_error(error);
  }
  return static_cast<std::size_t>(sent);
}

nb::bytes receive(TlsInPython& self, int fd, std::size_t most) {
  std::string data(most, '\0');
  const iovec vector{data.data(), data.size()};
  ssize_t received = 0;
  int error = 0;
  {
    const nb::gil_scoped_release released;
    received = self.tls->receive(fd, {&vector, 1});
    error = errno;
  }
  if (received < 0) {
    raise_os_error(error);
  }
  return nb::bytes(data.data(), static_cast<std::size_t>(received));
}

nb::bytes greeting(const TlsInPython& self) {
  return nb::bytes(self.tls->greeting().data(), self.tls->greeting().size());
}

void make_socket(Connection* place, int fd, const TlsInPython* tls) {
  new (place) Connection(Socket(fd, tls == nullptr ? nullptr : tls->tls));
}

}  // namespace

void bind_tls(nb::module_& module) {
  nb::class_<TlsInPython>(module, "Tls")
      .def_static("client", &client, "identity"_a, "key"_a)
      .def_static("server", &server, "find_key"_a)
      .def_static("version", &Tls::version)
      .def("handshake", &handshake, "fd"_a)
      .def("send", &send, "fd"_a, "data"_a)
      .def("receive", &receive, "fd"_a, "most"_a)
      .def("greeting", &greeting)
      .def("why", [](const TlsInPython& self) { return self.tls->why(); });

  nb::class_<Connection>(module, "Socket").def("__init__", &make_socket, "fd"_a, "tls"_a.none() = nb::none());
  nb::implicitly_convertible<int, Connection>();
}

}  // namespace shoal::python
