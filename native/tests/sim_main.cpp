// Runs random jobs on the simulated network, with fresh seeds for a while or with one seed and its trace.
//
//   shoal_simulate --seconds 60            fresh seeds for a minute; the first that fails ends it, with exit code 1
//   shoal_simulate --seed-from 1 --seconds 60
//   shoal_simulate --seed 17 [--trace]     one run again
//   --calm, --faults                       only runs without, only runs with faults
//   shoal_simulate rated ...               one job on links with a rate and queues that drop: sim_rated.cpp
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>

#include "drivers/sim/simulation.h"
#include "sim_rated.h"

namespace {

using namespace shoal;

struct Options {
  double seconds = 10;
  bool one = false;
  std::uint64_t seed = 0;
  bool trace = false;
  bool calm = true;
  bool faults = true;
};

// What to print if a machine crashes: written before each run, read by the signal handler.
char current[128];

void crashed(int signal) {
  const ssize_t written = write(STDERR_FILENO, current, std::strlen(current));
  std::signal(signal, SIG_DFL);
  std::raise(written < 0 ? SIGABRT : signal);
}

bool with_faults(const Options& options, std::uint64_t seed) {
  return options.calm && options.faults ? seed % 2 == 1 : options.faults;
}

std::string replay(const Options& options, std::uint64_t seed) {
  const char* kind = options.calm && options.faults ? "" : options.calm ? " --calm" : " --faults";
  return "shoal_simulate --seed " + std::to_string(seed) + kind + " --trace";
}

sim::Outcome run(const Options& options, std::uint64_t seed) {
  std::snprintf(current, sizeof current, "crashed; replay: %s\n", replay(options, seed).c_str());
  const sim::Plan plan = sim::random_plan(seed, with_faults(options, seed));
  sim::Simulation simulation(plan, seed, options.trace ? &std::cout : nullptr);
  return simulation.run();
}

bool report(const Options& options, std::uint64_t seed, const sim::Outcome& outcome) {
  if (outcome.violation.empty()) {
    return true;
  }
  std::cout << "seed " << seed << " FAILED: " << outcome.violation << "\nreplay: " << replay(options, seed) << "\n";
  return false;
}

int run_many(const Options& options) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t seed = options.seed;
  std::uint64_t runs = 0;
  std::uint64_t events = 0;
  std::uint64_t well = 0;
  std::uint64_t badly = 0;
  for (; std::chrono::steady_clock::now() < end; ++seed) {
    const sim::Outcome outcome = run(options, seed);
    if (!report(options, seed, outcome)) {
      return 1;
    }
    ++runs;
    events += outcome.events;
    for (const sim::Finish& finish : outcome.finishes) {
      ++(finish.status.ok() ? well : badly);
    }
  }
  std::cout << runs << " runs from seed " << options.seed << ", " << events << " events; handles: " << well
            << " ended well, " << badly << " with the error that they should\n";
  return 0;
}

bool parse(int argc, char** argv, Options& options) {
  options.seed = (static_cast<std::uint64_t>(std::random_device{}()) << 8);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--seconds" && has_value) {
      options.seconds = std::atof(argv[++i]);
    } else if (word == "--seed" && has_value) {
      options.one = true;
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed-from" && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--trace") {
      options.trace = true;
    } else if (word == "--calm") {
      options.faults = false;
    } else if (word == "--faults") {
      options.calm = false;
    } else {
      std::cerr << "shoal_simulate: unknown or incomplete argument '" << word
                << "'; known: --seconds S, --seed N, --seed-from N, --trace, --calm, --faults\n";
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "rated") == 0) {
    return simulate_rated(argc - 2, argv + 2);
  }
  Options options;
  if (!parse(argc, argv, options)) {
    return 2;
  }
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS}) {
    std::signal(signal, crashed);
  }
  if (!options.one) {
    return run_many(options);
  }
  const sim::Outcome outcome = run(options, options.seed);
  std::cout << outcome.events << " events, " << static_cast<double>(outcome.ended_at) / 1e9 << " s of virtual time, "
            << outcome.finishes.size() << " handles ended\n";
  return report(options, options.seed, outcome) ? 0 : 1;
}
