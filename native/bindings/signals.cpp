#include "bindings/signals.h"

#include <Python.h>
#include <sys/time.h>

#include <cstdint>

#include "engine/callers.h"

namespace shoal::python {

namespace {

// What the interpreter would call its next thread, were it not this one. Numbers are given once, in rising order, when
// a thread is about to begin: they tell of one that has ended meanwhile, too.
std::uint64_t next_thread() {
  PyThreadState* state = PyThreadState_New(PyInterpreterState_Get());
  if (state == nullptr) {
    return 0;  // no memory
  }
  const std::uint64_t number = PyThreadState_GetID(state);
  PyThreadState_Clear(state);
  PyThreadState_Delete(state);
  return number;
}

bool alarm_is_set() {
  itimerval timer{};
  ::getitimer(ITIMER_REAL, &timer);
  return timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0;
}

}  // namespace

// Time does not tell whether a handler has run: the look for one, just after a sleep, may take longer than a handler.
int run_handlers_of_blocked() {
  const engine::Awake awake;
  const bool alarm_was_set = alarm_is_set();
  const std::uint64_t before = next_thread();
  const int result = PyErr_CheckSignals();
  if (next_thread() != before + 1 || (alarm_is_set() && !alarm_was_set)) {
    engine::note_call();
  }
  return result;
}

}  // namespace shoal::python
