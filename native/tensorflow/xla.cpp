// Gives TensorFlow's copy of XLA what compiled programs call (xla/handlers.h), when Python asks for the first of them.
#include <dlfcn.h>

#include <string>

#include "xla/handlers.h"

namespace shoal::tensorflow {

namespace {

// Not in versions whose XLA knows no such calls.
const char* const library = "libtensorflow_cc.so.2";
const char* const interface = "_ZN3xla3ffi12GetXlaFfiApiEv";

std::string register_all() {
  void* const handle = ::dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  void* const found = handle == nullptr ? nullptr : ::dlsym(handle, interface);
  if (found == nullptr) {
    return "the XLA of this TensorFlow has no interface for calls from compiled programs";
  }
  const xla::Api* const api = reinterpret_cast<const xla::Api* (*)()>(found)();
  return api == nullptr ? "the XLA of this TensorFlow gives no interface" : xla::register_handlers(*api);
}

}  // namespace

const char* enable_xla() {
  static const auto* const problem = new std::string(register_all());
  return problem->c_str();
}

}  // namespace shoal::tensorflow
