// Threads that come back into an interpreter that has ended.
//
// Before version 3.14, Python ends such a thread where it asks for the GIL, with pthread_exit. That unwinds its stack,
// and the first function on it that promises not to throw turns this into std::terminate: a daemon thread that waits in
// an operation, in ours or in PyTorch's functions, would abort a process that ends well. So such a thread stops where
// it is, as in 3.14, and ends with the process.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <thread>

#include "bindings/bindings.h"

namespace shoal::python {

namespace {

std::atomic<bool> is_ending{false};
// Written before is_ending.
std::thread::id ended_by;
std::terminate_handler before = nullptr;

[[noreturn]] void on_terminate() {
  const bool is_unwound = std::current_exception() == nullptr;
  if (is_unwound && is_ending && std::this_thread::get_id() != ended_by) {
    for (;;) {
      ::pause();
    }
  }
  if (before != nullptr) {
    before();
  }
  std::abort();
}

// An exit handler: the interpreter goes as soon as all have run.
void note_ending() {
  ended_by = std::this_thread::get_id();
  is_ending = true;
}

}  // namespace

void bind_ending(nb::module_& module) {
  before = std::set_terminate(on_terminate);
  module.def("_note_ending", &note_ending);
  nb::module_::import_("atexit").attr("register")(module.attr("_note_ending"));
}

}  // namespace shoal::python
