// Many runs of the simulated network at once, in a process for each core, so that a crash ends one run and not all.
#pragma once

#include <cstdint>
#include <string>

namespace shoal {

struct ManyRuns {
  std::uint64_t first_seed = 0;
  std::uint64_t seeds = ~std::uint64_t{0};  // at most so many
  double seconds = 1e9;                     // at most so long
  unsigned jobs = 1;
  bool until_failure = false;  // ends at the first seed that fails, instead of after some of them
  bool calm = true;            // runs without, runs with faults
  bool faults = true;
};

// Whether the run of a seed has faults: every second one, if there are both.
bool has_faults(const ManyRuns& runs, std::uint64_t seed);
// How a person runs it again.
std::string replay_text(const ManyRuns& runs, std::uint64_t seed);

// Prints every seed that fails as it does, and what was run in the end. The exit code: 0 if nothing failed, else 1.
int run_many(const ManyRuns& runs);

}  // namespace shoal
