// Runs random jobs on the simulated network, with fresh seeds for a while or with one seed and its trace.
//
//   shoal_simulate --seconds 60                fresh seeds for a minute on all cores; prints those that fail, exit code
//   1 shoal_simulate --seed-from 1 --seeds 1000  these
//     --jobs J                                 on so many cores
//     --until-failure                          no further than the first seed that fails; says how many that took
//   shoal_simulate --seed 17 [--trace]         one run again
//   --calm, --faults                           only runs without, only runs with faults
//   shoal_simulate packet_level ...                   one job on links with a rate and queues that drop:
//   sim_packet_level.cpp
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "drivers/sim/simulation.h"
#include "sim_many.h"
#include "sim_packet_level.h"

namespace {

using namespace shoal;

struct Options {
  ManyRuns runs;
  std::optional<std::uint64_t> seed;
  bool trace = false;
};

bool parse(int argc, char** argv, Options& options) {
  ManyRuns& runs = options.runs;
  runs.first_seed = static_cast<std::uint64_t>(std::random_device{}()) << 20;
  runs.jobs = std::max(1U, std::thread::hardware_concurrency());
  bool is_bounded = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--seconds" && has_value) {
      runs.seconds = std::atof(argv[++i]);
      is_bounded = true;
    } else if (word == "--seeds" && has_value) {
      runs.seeds = std::strtoull(argv[++i], nullptr, 10);
      is_bounded = true;
    } else if (word == "--seed" && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed-from" && has_value) {
      runs.first_seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--jobs" && has_value) {
      runs.jobs = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    } else if (word == "--until-failure") {
      runs.until_failure = true;
    } else if (word == "--trace") {
      options.trace = true;
    } else if (word == "--calm") {
      runs.faults = false;
    } else if (word == "--faults") {
      runs.calm = false;
    } else {
      std::cerr << "shoal_simulate: unknown or incomplete argument '" << word
                << "'; known: --seconds S, --seeds N, --seed N, --seed-from N, --jobs J, --until-failure, --trace, "
                   "--calm, --faults\n";
      return false;
    }
  }
  if (!is_bounded) {
    runs.seconds = 10;
  }
  return true;
}

int run_one(const Options& options) {
  const std::uint64_t seed = *options.seed;
  sim::Simulation simulation(sim::random_plan(seed, has_faults(options.runs, seed)), seed,
                             options.trace ? &std::cout : nullptr);
  const sim::Outcome outcome = simulation.run();
  std::cout << outcome.events << " events, " << static_cast<double>(outcome.ended_at) / 1e9 << " s of virtual time, "
            << outcome.finishes.size() << " handles ended, digest " << std::hex << outcome.digest << std::dec << "\n";
  if (outcome.violation.empty()) {
    return 0;
  }
  std::cout << "seed " << seed << " FAILED: " << outcome.violation << "\nreplay: " << replay_text(options.runs, seed)
            << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "packet_level") == 0) {
    return simulate_rated(argc - 2, argv + 2);
  }
  Options options;
  if (!parse(argc, argv, options)) {
    return 2;
  }
  return options.seed ? run_one(options) : run_many(options.runs);
}
