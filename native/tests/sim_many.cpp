#include "sim_many.h"

#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <vector>

#include "drivers/sim/simulation.h"

namespace shoal {

namespace {

// More failures than a person reads are not looked for.
constexpr std::uint64_t most_failures = 20;
constexpr unsigned most_jobs = 256;

// A run takes some milliseconds; one that is still going after so many seconds of a processor never ends.
constexpr time_t longest_run_seconds = 60;

// The process ends by a signal after so many seconds; 0: it does not.
void limit_processor_time(time_t seconds) {
  const itimerval limit{{}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

// In memory that all processes share.
struct Progress {
  std::atomic<std::uint64_t> next;           // seed
  std::atomic<std::uint64_t> lowest_failed;  // all ones: none
  std::atomic<std::uint64_t> failures;
  std::atomic<std::uint64_t> runs;
  std::atomic<std::uint64_t> events;
  std::atomic<std::uint64_t> well;
  std::atomic<std::uint64_t> straight;
  std::atomic<std::uint64_t> badly;
  std::atomic<std::uint64_t> current[most_jobs];  // seed, by job
};

class Workers {
 public:
  explicit Workers(const ManyRuns& runs) : runs_(runs), end_(std::chrono::steady_clock::now() + length_of(runs)) {
    void* memory = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    progress_ = new (memory) Progress{};
    progress_->next = runs.first_seed;
    progress_->lowest_failed = ~std::uint64_t{0};
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() { ::munmap(progress_, sizeof(Progress)); }

  int run() {
    std::vector<pid_t> workers;
    for (unsigned job = 0; job < std::clamp(runs_.jobs, 1U, most_jobs); ++job) {
      workers.push_back(start(job));
    }
    std::size_t alive = workers.size();
    while (alive > 0) {
      int status = 0;
      const pid_t ended = ::wait(&status);
      const auto place = std::find(workers.begin(), workers.end(), ended);
      if (ended < 0 && errno != EINTR) {
        break;
      }
      if (place == workers.end()) {
        continue;
      }
      const auto job = static_cast<unsigned>(place - workers.begin());
      if (WIFSIGNALED(status)) {
        failed(progress_->current[job], std::string("ended by ") + strsignal(WTERMSIG(status)));
        *place = start(job);
      } else {
        --alive;
      }
    }
    print_summary();
    return progress_->failures == 0 ? 0 : 1;
  }

 private:
  static std::chrono::steady_clock::duration length_of(const ManyRuns& runs) {
    return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(runs.seconds));
  }

  pid_t start(unsigned job) {
    std::cout.flush();
    const pid_t child = ::fork();
    if (child == 0) {
      work(job);
      std::cout.flush();
      ::_exit(0);
    }
    return child;
  }

  void work(unsigned job) {
    while (goes_on()) {
      const std::uint64_t seed = progress_->next++;
      if (seed - runs_.first_seed >= runs_.seeds || (runs_.until_failure && seed > progress_->lowest_failed)) {
        return;
      }
      progress_->current[job] = seed;
      limit_processor_time(longest_run_seconds);
      sim::Simulation simulation(sim::random_plan(seed, has_faults(runs_, seed)), seed, nullptr);
      const sim::Outcome outcome = simulation.run();
      limit_processor_time(0);
      ++progress_->runs;
      progress_->events += outcome.events;
      progress_->straight += outcome.straight;
      for (const sim::Finish& finish : outcome.finishes) {
        ++(finish.status.ok() ? progress_->well : progress_->badly);
      }
      if (!outcome.violation.empty()) {
        failed(seed, outcome.violation);
      }
    }
  }

  bool goes_on() const {
    return std::chrono::steady_clock::now() < end_ && (runs_.until_failure || progress_->failures < most_failures);
  }

  void failed(std::uint64_t seed, const std::string& why) {
    ++progress_->failures;
    std::uint64_t lowest = progress_->lowest_failed;
    while (seed < lowest && !progress_->lowest_failed.compare_exchange_weak(lowest, seed)) {
    }
    const std::string text =
        "seed " + std::to_string(seed) + " FAILED: " + why + "\nreplay: " + replay_text(runs_, seed) + "\n";
    std::cout << text << std::flush;
  }

  void print_summary() const {
    std::cout << progress_->runs << " runs from seed " << runs_.first_seed << ", " << progress_->events
              << " events; handles: " << progress_->well << " ended well (" << progress_->straight
              << " of them straight from arrays to arrays), " << progress_->badly << " with an error; "
              << progress_->failures << " runs failed\n";
    if (runs_.until_failure && progress_->failures > 0) {
      std::cout << "first failure after " << progress_->lowest_failed - runs_.first_seed + 1 << " seeds\n";
    }
  }

  const ManyRuns runs_;
  const std::chrono::steady_clock::time_point end_;
  Progress* progress_ = nullptr;
};

}  // namespace

bool has_faults(const ManyRuns& runs, std::uint64_t seed) {
  return runs.calm && runs.faults ? seed % 2 == 1 : runs.faults;
}

std::string replay_text(const ManyRuns& runs, std::uint64_t seed) {
  const char* kind = runs.calm && runs.faults ? "" : runs.calm ? " --calm" : " --faults";
  return "shoal_simulate --seed " + std::to_string(seed) + kind + " --trace";
}

int run_many(const ManyRuns& runs) { return Workers(runs).run(); }

}  // namespace shoal
