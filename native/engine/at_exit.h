// How a job that was never left ends with its process: exit status 0 is a goodbye, any other one an abort.
//
// Only the process's own exit knows the status: Python has been taken down by then, so nothing here needs it. See
// docs/decisions/exit.md.
#pragma once

#include <string>

#include "engine/engine.h"

namespace shoal::engine {

// At exit with status 0 the engine says goodbye and, if it `serves` other ranks, goes on until nobody needs it;
// otherwise everyone is told that this rank has ended, with `reason` or, if that is empty, with the status. Until then
// the engine must not be destroyed. Does nothing in a child made by fork().
void finish_at_exit(Engine& engine, std::string reason);

}  // namespace shoal::engine
