// The module shoal._native: src/shoal/_native.pyi says what is in it.
#include "bindings/bindings.h"

NB_MODULE(_native, module) {
  // The application's own objects may live until the interpreter ends; that is no leak.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = SHOAL_VERSION;
  shoal::python::bind_functions(module);
  shoal::python::bind_array(module);
  shoal::python::bind_tls(module);
  shoal::python::bind_memory(module);
  shoal::python::bind_cuda(module);
  shoal::python::bind_engine(module);
  shoal::python::bind_doors(module);
  shoal::python::bind_server(module);
  shoal::python::bind_ending(module);
}
