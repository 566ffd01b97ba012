// Handlers of signals, which run in the middle of a wait.
#pragma once

namespace shoal::python {

// As PyErr_CheckSignals, by a thread that waits for an operation without a limit. It is not blocked while handlers run,
// and what one leaves behind that may call something later counts as a call: a thread, or an alarm.
int run_handlers_of_blocked();

}  // namespace shoal::python
