// What stands against the operations of a simulated job, and what happens to its processes and links: a part of its
// plan (workload.h). An operation knows how it may end because of what stands against it.
#pragma once

#include "drivers/sim/random.h"
#include "drivers/sim/workload.h"

namespace shoal::sim {

inline constexpr Time millisecond = second / 1000;

// --- Operations ---

// Makes one or two members send something else.
void spoil_agreement(Random& random, const Plan& plan, OperationPlan& operation);
// One member fails before it begins.
void fail_some(Random& random, OperationPlan& operation);
// Some never submit it. Only for names that are used once: occurrences would shift.
void miss_some(Random& random, OperationPlan& operation);
// One member has no memory for what some all-gathers bring, of those that go on from a machine to others.
void lack_memory(Random& random, Plan& plan);
// On one member the calls of some operations come when their time is out, or nearly. For operations of ranks that share
// memory and are all of their group, once they have steps; other ranks' steps stay where they are.
void call_some_late(Random& random, Plan& plan);

// The inputs of some come after their calls, and maybe after the end of another operation on that rank.
void bring_inputs_late(Random& random, Plan& plan);

// --- Processes and links ---

// None unless `faults`. `spread`: as for schedule().
void add_faults(Random& random, Plan& plan, bool faults, Time spread);

// Half of the jobs of two lanes: each server has one of its lanes on each of two networks, which are lost apart.
void spread_over_networks(std::uint64_t seed, Plan& plan, bool faults, Time spread);

}  // namespace shoal::sim
