#include "sim_packet_level.h"

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

#include "drivers/sim/packet_level/job.h"

namespace {

using namespace shoal;
using namespace shoal::sim::packet_level;

constexpr const char* usage =
    R"(shoal_simulate packet_level: averages on a simulated network whose links have a rate, a delay and a queue that drops.

  --nodes N --servers K     8 and 8
  --ranks 1                 of every node; several average each its part with those at the same place in other nodes
  --whole-windows           each of these has the windows of a node's only rank
  --rate 400mbit            of every host, in each direction (kbit, mbit, gbit)
  --queue 256ki             bytes that the switch holds for each host
  --burst 0                 bytes of a token bucket: 128ki makes links like those of `shoal lab`, 0 makes wires
  --delay 50us              from host to host (ns, us, ms, s)
  --timeout 200ms           TCP's least retransmission timeout
  --host-queue 64ki         bytes of one flow that wait in its own host
  --bytes 25m --rounds 1    what is averaged, and how often, one after another
  --together 1              so many operations of that size at once in each round
  --segment 16ki            bytes of a segment
  --least-segment 0         bytes of the smallest segment of short operations; 0: they have the same
  --credit 16ki             bytes that a worker may have unanswered at one server
  --frame-cost 5us          a process's time for a frame
  --jitter 5us              everything that a process does takes up to so much longer
  --foreign reno            a bulk flow of somebody else on every link, in each direction; a number instead of reno: so
                            many packets on their way, whatever happens to them
  --start 0s                when the ranks submit; the flows of others begin at 0
  --ring                    instead of servers
  --pace                    the job knows what its links allow, and windows follow the network
  --seed 1                  of the moments of submission and of jitter

Sizes: k, m, g are thousands, millions, milliards; ki, mi, gi are powers of 1024.
)";

struct Options {
  std::uint32_t workers = 8;
  std::uint32_t servers = 8;
  std::uint32_t ranks = 1;
  std::uint32_t segment = 16 * 1024;
  std::uint32_t least_segment = 0;
  std::uint32_t credit = 16 * 1024;
  HostSettings host;
  bool pace = false;
  bool ring = false;
  bool whole_windows = false;
  std::optional<std::uint32_t> foreign;  // window
  Setup setup;
};

using Units = std::map<std::string, double>;

const Units sizes{{"", 1}, {"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"ki", 1 << 10}, {"mi", 1 << 20}, {"gi", 1 << 30}};
const Units rates{{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};  // bytes a second
const Units times{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};          // nanoseconds

std::optional<double> number(const std::string& text, const Units& units) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const auto unit = units.find(end);
  if (end == text.c_str() || value < 0 || unit == units.end()) {
    return std::nullopt;
  }
  return value * unit->second;
}

// Reads a value into the options. False: it is not one.
using Reader = std::function<bool(Options&, const std::string&)>;

template <class Field>
Reader read(const Units& units, Field&& field) {
  return [&units, field](Options& options, const std::string& text) {
    const std::optional<double> value = number(text, units);
    if (value) {
      auto& target = field(options);
      target = static_cast<std::remove_reference_t<decltype(target)>>(*value);
    }
    return value.has_value();
  };
}

bool read_foreign(Options& options, const std::string& text) {
  const std::optional<double> window = text == "reno" ? 0 : number(text, sizes);
  if (window) {
    options.foreign = static_cast<std::uint32_t>(*window);
  }
  return window.has_value();
}

const std::map<std::string, Reader> readers{
    {"--nodes", read(sizes, [](Options& o) -> auto& { return o.workers; })},
    {"--servers", read(sizes, [](Options& o) -> auto& { return o.servers; })},
    {"--ranks", read(sizes, [](Options& o) -> auto& { return o.ranks; })},
    {"--rate", read(rates, [](Options& o) -> auto& { return o.host.rate; })},
    {"--queue", read(sizes, [](Options& o) -> auto& { return o.host.queue; })},
    {"--burst", read(sizes, [](Options& o) -> auto& { return o.host.burst; })},
    {"--delay", read(times, [](Options& o) -> auto& { return o.setup.fabric.delay; })},
    {"--timeout", read(times, [](Options& o) -> auto& { return o.setup.fabric.least_timeout; })},
    {"--host-queue", read(sizes, [](Options& o) -> auto& { return o.setup.fabric.host_queue; })},
    {"--bytes", read(sizes, [](Options& o) -> auto& { return o.setup.bytes; })},
    {"--together", read(sizes, [](Options& o) -> auto& { return o.setup.together; })},
    {"--rounds", read(sizes, [](Options& o) -> auto& { return o.setup.rounds; })},
    {"--segment", read(sizes, [](Options& o) -> auto& { return o.segment; })},
    {"--least-segment", read(sizes, [](Options& o) -> auto& { return o.least_segment; })},
    {"--credit", read(sizes, [](Options& o) -> auto& { return o.credit; })},
    {"--frame-cost", read(times, [](Options& o) -> auto& { return o.setup.costs.frame; })},
    {"--jitter", read(times, [](Options& o) -> auto& { return o.setup.costs.jitter; })},
    {"--foreign", read_foreign},
    {"--start", read(times, [](Options& o) -> auto& { return o.setup.start; })},
    {"--seed", read(sizes, [](Options& o) -> auto& { return o.setup.seed; })},
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    const auto reader = readers.find(word);
    if (word == "--pace") {
      options.pace = true;
    } else if (word == "--whole-windows") {
      options.whole_windows = true;
    } else if (word == "--ring") {
      options.ring = true;
    } else if (reader == readers.end() || i + 1 == argc || !reader->second(options, argv[++i])) {
      std::cerr << "shoal_simulate packet_level: cannot read '" << word << "' or its value\n\n" << usage;
      return false;
    }
  }
  return true;
}

// What the options say, beside what is in the setup already.
Setup setup_of(const Options& options) {
  const Setup even = even_setup(options.workers, options.servers, options.host, options.segment, options.credit);
  Setup setup = options.setup;
  setup.config = even.config;
  setup.config.ring = options.ring;
  setup.config.least_segment = options.least_segment;
  setup.fabric.hosts = even.fabric.hosts;
  if (options.ranks > 1) {
    put_ranks_on_nodes(setup, options.ranks);
  }
  if (options.whole_windows) {
    setup.config.rank_segment = setup.config.rank_credit = 0;
  }
  if (options.pace) {
    setup.config.rate = static_cast<std::uint64_t>(options.workers == 1 ? 0 : 1 / bound(setup, 1));
  }
  if (options.foreign) {
    add_foreign_everywhere(setup, *options.foreign);
  }
  return setup;
}

double milliseconds(Time time) { return static_cast<double>(time) / 1e6; }

void print(const Setup& setup, const Report& report) {
  const double least = 1e3 * bound(setup, setup.bytes * setup.together);
  std::cout << std::fixed << std::setprecision(1);
  for (std::size_t round = 0; round < report.rounds.size(); ++round) {
    const double time = milliseconds(report.rounds[round]);
    std::cout << "round " << round + 1 << ": " << time << " ms, " << std::setprecision(3) << time / least
              << " of the bound of " << std::setprecision(1) << least << " ms\n";
  }
  if (report.rounds.size() > 1) {
    // A rank that is done begins the next one while others are not, so it is less than all of these.
    const double time = milliseconds(report.time);
    std::cout << "together: " << time << " ms, " << std::setprecision(3)
              << time / (least * static_cast<double>(setup.rounds)) << " of the bound\n";
  }
  std::cout << report.counts.packets << " packets, " << report.counts.dropped << " dropped, " << report.counts.timeouts
            << " timeouts, the longest queue " << report.counts.largest_queue << " bytes\n";
  if (!setup.foreign.empty()) {
    const double capacity = static_cast<double>(report.time) / 1e9 * stream_rate(setup.fabric.hosts.front().rate);
    std::cout << "flows of others: " << report.foreign_bytes << " bytes, " << std::setprecision(3)
              << static_cast<double>(report.foreign_bytes) / static_cast<double>(setup.foreign.size()) / capacity
              << " of the links; the job: " << std::setprecision(3)
              << least * static_cast<double>(setup.rounds) / milliseconds(report.time) << "\n";
  }
}

}  // namespace

int simulate_rated(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    return 2;
  }
  const Setup setup = setup_of(options);
  const Report report = run(setup);
  if (!report.failure.empty()) {
    std::cout << "FAILED: " << report.failure << "\n";
    return 1;
  }
  print(setup, report);
  return 0;
}
