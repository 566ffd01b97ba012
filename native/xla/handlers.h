// What programs that XLA has compiled call: the collective operations, and the averaging of a step's gradients.
//
// Knows no framework: one that has XLA hands over the Api of its copy, and writes the calls into its programs. All have
// one result more than they are about, a number that nobody needs. A call that is to come after another one has the
// number of that as its last operand, and the attribute "ordered": nothing else keeps calls of a program in order.
#pragma once

#include <string>

#include "doors/table.h"
#include "xla/ffi.h"

namespace shoal::xla {

// Gives XLA the handlers of calls on arrays in memory of the host. Empty, or why that cannot be.
std::string register_handlers(const Api& api);

// For the register of a framework: their names are "shoal." and these.
Error* all_reduce(Frame* frame);
Error* reduce_scatter(Frame* frame);
Error* broadcast(Frame* frame);
Error* all_gather(Frame* frame);
Error* all_to_all(Frame* frame);
Error* average(Frame* frame);
Error* place(Frame* frame);

}  // namespace shoal::xla
