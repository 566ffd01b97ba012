// Signal handlers that run in the middle of a wait.
#pragma once

namespace shoal::python {

// PyErr_CheckSignals for a thread that waits for an operation without a limit. While handlers run it does not count as
// blocked. If a handler leaves a thread or an alarm behind, which may call something later, that counts as a call.
int run_handlers_of_blocked();

}  // namespace shoal::python
