// How a job that was never left ends with its process: exit status 0 is a goodbye, any other status an abort.
//
// The status is known only when the process exits. Python has been taken down by then, so nothing here uses it. See
// docs/decisions/exit.md.
#pragma once

#include <string>

#include "engine/engine.h"

namespace shoal::engine {

// At exit with status 0 the engine says goodbye, and goes on until nobody needs it if it `serves` other ranks. At any
// other status all ranks are told that this one has ended, and why: `reason`, or the status if that is empty. The
// engine must live until then. Does nothing in a child made by fork().
void finish_at_exit(Engine& engine, std::string reason);

}  // namespace shoal::engine
