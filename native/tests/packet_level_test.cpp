// The packet-level network (native/drivers/sim/packet_level): TCP flows on links with a rate, a delay and a queue that
// drops, and the product's machines on it. What it says of a job, it says on every machine: the clock is virtual, the
// seeds are fixed.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "check.h"
#include "drivers/sim/packet_level/fabric.h"
#include "drivers/sim/packet_level/flow.h"
#include "drivers/sim/packet_level/job.h"
#include "drivers/sim/packet_level/timeline.h"

using namespace shoal;
using namespace shoal::sim::packet_level;

namespace {

constexpr Time millisecond = second / 1000;
constexpr std::uint32_t kib = 1024;
constexpr HostSettings host{50e6, 256 * kib, 0};  // 400 Mbit/s
constexpr HostSettings fast_host{500e6, 256 * kib, 0};

// When which byte arrived.
struct Log final : Sink {
  explicit Log(Timeline& of) : timeline(of) {}
  void arrived(std::uint64_t upto) override {
    CHECK(upto > end);
    end = upto;
    when = timeline.now();
  }
  Timeline& timeline;
  std::uint64_t end = 0;
  Time when = 0;
};

FabricSettings fabric_of(std::vector<HostSettings> hosts, Time delay) {
  FabricSettings settings;
  settings.hosts = std::move(hosts);
  settings.delay = delay;
  return settings;
}

void run_until(Timeline& timeline, Time end) {
  while (timeline.now() < end && timeline.step()) {
  }
}

// Of what a link can carry in that time.
double share(const Log& log, const HostSettings& of, Time time) {
  return static_cast<double>(log.end) / (stream_rate(of.rate) * static_cast<double>(time) / 1e9);
}

Report ran(const Setup& setup) {
  Report report = run(setup);
  if (!report.failure.empty()) {
    std::cerr << report.failure << "\n";
  }
  CHECK(report.failure.empty());
  return report;
}

double ratio(const Setup& setup, const Report& report) {
  const double least = bound(setup, setup.bytes * setup.together) * setup.rounds;
  std::printf("  %.3f of the bound, %llu of %llu packets dropped, %llu timeouts, longest queue %zu\n",
              static_cast<double>(report.time) / 1e9 / least, static_cast<unsigned long long>(report.counts.dropped),
              static_cast<unsigned long long>(report.counts.packets),
              static_cast<unsigned long long>(report.counts.timeouts), report.counts.largest_queue);
  return static_cast<double>(report.time) / 1e9 / least;
}

}  // namespace

TEST(a_flow_alone_fills_its_link) {
  Timeline timeline;
  Fabric fabric(timeline, fabric_of({host, host}, millisecond));
  Log log(timeline);
  fabric.add_flow(0, 1, log).send_endlessly(0);
  run_until(timeline, second);
  CHECK(share(log, host, second) > 0.97);
  CHECK(share(log, host, second) <= 1.0);
  CHECK_EQ(fabric.counts().dropped, 0U);
}

TEST(the_first_window_is_ten_packets_and_doubles_every_round_trip) {
  Timeline timeline;
  Fabric fabric(timeline, fabric_of({fast_host, fast_host}, 10 * millisecond));
  Log log(timeline);
  // 10 + 20 + 40 + 30 packets: the last leave after three round trips and take half of one.
  fabric.add_flow(0, 1, log).write(100 * most_payload);
  run_until(timeline, second);
  CHECK_EQ(log.end, 100U * most_payload);
  CHECK(log.when > 70 * millisecond);
  CHECK(log.when < 72 * millisecond);
}

TEST(two_flows_toward_one_host_share_its_link) {
  Timeline timeline;
  Fabric fabric(timeline, fabric_of({host, host, host}, millisecond));
  Log first(timeline);
  Log other(timeline);
  fabric.add_flow(0, 2, first).send_endlessly(0);
  fabric.add_flow(1, 2, other).send_endlessly(0);
  run_until(timeline, 10 * second);
  CHECK(share(first, host, 10 * second) > 0.3);
  CHECK(share(other, host, 10 * second) > 0.3);
  CHECK(share(first, host, 10 * second) + share(other, host, 10 * second) > 0.95);
  CHECK(fabric.counts().largest_queue <= host.queue);
}

TEST(a_flow_that_overflows_a_queue_halves_its_window_and_goes_on_without_a_timeout) {
  Timeline timeline;
  Fabric fabric(timeline, fabric_of({fast_host, host}, millisecond));
  Log log(timeline);
  Flow& flow = fabric.add_flow(0, 1, log);
  flow.send_endlessly(0);
  run_until(timeline, 5 * second);
  CHECK(fabric.counts().dropped > 0);
  CHECK(flow.retransmitted() >= fabric.counts().dropped);
  CHECK_EQ(fabric.counts().timeouts, 0U);
  CHECK(share(log, host, 5 * second) > 0.9);
}

TEST(a_lost_tail_waits_for_the_timer_and_arrives) {
  for (const Time least : {10 * millisecond, 200 * millisecond}) {
    Timeline timeline;
    FabricSettings settings = fabric_of({fast_host, {50e6, 8 * 1500, 0}}, millisecond);
    settings.least_timeout = least;
    Fabric fabric(timeline, settings);
    Log log(timeline);
    fabric.add_flow(0, 1, log).write(10 * most_payload);  // at once, at ten times the rate of the link behind the queue
    run_until(timeline, 5 * second);
    CHECK_EQ(log.end, 10U * most_payload);
    CHECK_EQ(fabric.counts().dropped, 2U);
    CHECK_EQ(fabric.counts().timeouts, 1U);
    CHECK(log.when > least);
    CHECK(log.when < least + 10 * millisecond);
  }
}

TEST(packets_of_others_that_take_no_notice_of_losses_keep_coming) {
  Timeline timeline;
  Fabric fabric(timeline, fabric_of({host, host, host}, millisecond));
  Log reno(timeline);
  Log stubborn(timeline);
  fabric.add_flow(0, 2, reno).send_endlessly(0);
  fabric.add_flow(1, 2, stubborn).send_endlessly(150);
  run_until(timeline, 10 * second);
  CHECK(share(stubborn, host, 10 * second) > 0.5);
  CHECK(share(reno, host, 10 * second) > 0.05);
}

TEST(a_token_bucket_gives_back_the_time_that_it_was_idle_and_a_wire_does_not) {
  Line wire({50e6, 0, 0});
  Line bucket({50e6, 0, 3000});
  CHECK_EQ(wire.carry(1500, second), second + 30'000);
  CHECK_EQ(bucket.carry(1500, second), second);
  CHECK_EQ(bucket.carry(1500, second), second);
  CHECK_EQ(bucket.carry(1500, second), second + 30'000);
  CHECK_EQ(bucket.waiting(second), 1500U);
}

TEST(windows_that_fit_the_queue_fill_the_links_and_lose_nothing) {
  for (const std::uint32_t servers : {8U, 4U, 0U}) {
    const Setup setup = even_setup(8, servers, host, 16 * kib, 32 * kib);
    const Report report = ran(setup);
    CHECK(ratio(setup, report) < 1.05);
    CHECK_EQ(report.counts.dropped, 0U);
    CHECK(report.counts.largest_queue <= 256U * kib * 3 / 4);
  }
}

TEST(windows_that_do_not_fit_the_queue_lose_packets_and_time) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Setup setup = even_setup(8, 8, host, 64 * kib, 128 * kib);
    setup.seed = seed;
    const Report report = ran(setup);
    CHECK(ratio(setup, report) > 1.15);
    CHECK(report.counts.dropped > 0);
  }
}

// The lab's links are token buckets; docs/decisions/windows.md.
TEST(one_segment_a_window_leaves_wires_idle_and_token_buckets_not) {
  Setup setup = even_setup(8, 8, host, 16 * kib, 16 * kib);
  CHECK(ratio(setup, ran(setup)) > 1.15);
  for (HostSettings& each : setup.fabric.hosts) {
    each.burst = 128 * kib;
  }
  CHECK(ratio(setup, ran(setup)) < 1.05);
}

// What src/shoal/tuning/limits.py finds for links of 400 Mbit/s; tests/unit/tuning/test_limits.py.
TEST(sixty_four_nodes_and_servers_with_256_kib_on_their_way_toward_a_port_do_not_collapse) {
  Setup setup = even_setup(64, 64, host, 2 * kib, 4 * kib);
  setup.bytes = 12'000'000;
  const Report report = ran(setup);
  CHECK(ratio(setup, report) < 1.10);
  CHECK_EQ(report.counts.dropped, 0U);
  CHECK_EQ(report.counts.timeouts, 0U);
}

// The smallest segments that src/shoal/tuning/limits.py chooses, two of each worker; tests/unit/tuning/test_limits.py.
// With one a window these
// take 1.21, 1.41 and 1.76 times the bound.
TEST(two_of_the_smallest_segments_fill_links_that_are_faster_or_nodes_that_are_more) {
  struct Case {
    double rate;
    std::uint32_t workers;
    std::uint32_t segment;
    double most;
  };
  for (const Case& each : {Case{125e6, 64, 2048, 1.10}, Case{312.5e6, 32, 5120, 1.20}, Case{625e6, 16, 9984, 1.45}}) {
    const HostSettings fast{each.rate, 512 * kib, 0};
    Setup setup = even_setup(each.workers, each.workers, fast, each.segment, 2 * each.segment);
    setup.fabric.delay = 20'000;
    setup.bytes = 12'000'000;
    const Report report = ran(setup);
    CHECK(ratio(setup, report) < each.most);
    CHECK_EQ(report.counts.dropped, 0U);
  }
}

// Windows in proportion to weights took up to 1.10 of the bound, 1.145 with 32 workers.
TEST(nodes_own_servers_beside_dedicated_ones_keep_no_link_from_theirs) {
  struct Case {
    std::uint32_t workers;
    std::uint32_t servers;
    double most = 1.05;
  };
  for (const Case& each : {Case{4, 1}, Case{4, 2}, Case{4, 3}, Case{8, 1}, Case{8, 2}, Case{8, 4}, Case{8, 6},
                           Case{8, 7}, Case{16, 1}, Case{16, 4}, Case{16, 15}, Case{32, 4, 1.055}}) {
    const std::uint32_t segment = 120 * kib / each.workers;
    Setup setup = even_setup(each.workers, each.servers, host, segment, 2 * segment);
    setup.fabric.delay = 20'000;
    const Report report = ran(setup);
    CHECK(ratio(setup, report) < each.most);
    CHECK_EQ(report.counts.dropped, 0U);
  }
}

// Each rank averages its part of the bytes with those at the same place in other nodes, through an engine of its own.
// With the window of a whole node for each rank these lost 12, 449 and 1,720 packets and took 1.99, 1.31 and 1.31 times
// the bound.
TEST(the_ranks_of_a_node_that_all_send_have_no_more_on_their_way_than_one_would) {
  struct Case {
    std::uint32_t nodes;
    std::uint32_t servers;
    double rate;
    std::uint32_t ranks;
    double most = 1.05;
  };
  for (const Case& each : {Case{4, 4, 125e6, 4}, Case{8, 4, 50e6, 4}, Case{8, 4, 50e6, 8, 1.06}}) {
    const std::uint32_t segment = 120 * kib / each.nodes;
    Setup setup = even_setup(each.nodes, each.servers, HostSettings{each.rate, 256 * kib, 0}, segment, 2 * segment);
    setup.fabric.delay = 20'000;
    const Report alone = ran(setup);
    put_ranks_on_nodes(setup, each.ranks);
    const Report report = ran(setup);
    CHECK(ratio(setup, report) < each.most);
    CHECK_EQ(report.counts.dropped, 0U);
    CHECK(report.counts.largest_queue <= std::max<std::size_t>(alone.counts.largest_queue, 128 * kib));
    setup.config.rank_segment = setup.config.rank_credit = 0;
    const Report whole = ran(setup);
    CHECK(ratio(setup, whole) > 1.3);
    CHECK(whole.counts.dropped > 0);
  }
}

// Its window is a part of what its node may have. Two segments of it still fill the links.
TEST(one_rank_of_each_node_that_sends_while_the_others_do_not_is_hardly_slower) {
  for (const std::uint32_t ranks : {4U, 8U}) {
    Setup setup = even_setup(8, 8, host, 15 * kib, 30 * kib);
    setup.fabric.delay = 20'000;
    setup.config.rank_segment = 15 * kib / ranks / 64 * 64;
    setup.config.rank_credit = 30 * kib / ranks;
    CHECK(ratio(setup, ran(setup)) < 1.05);
  }
}

// Rank 0 moves an eighth of what its node does. That is no sign of other traffic, beside which windows would grow.
TEST(windows_that_follow_the_network_stay_where_all_ranks_of_a_node_send) {
  Setup setup = even_setup(4, 4, HostSettings{125e6, 4096 * kib, 0}, 30 * kib, 60 * kib);
  setup.fabric.delay = 20'000;
  setup.bytes = 100'000'000;
  put_ranks_on_nodes(setup, 8);
  const std::size_t queue = ran(setup).counts.largest_queue;
  setup.config.rate = static_cast<std::uint64_t>(1 / bound(setup, 1));
  const Report report = ran(setup);
  CHECK(ratio(setup, report) < 1.05);
  CHECK(report.counts.largest_queue <= 2 * queue);
}

// Each rank may have a node's inline bytes on their way. A part of them instead is no faster, and loses as little.
TEST(many_small_operations_of_all_ranks_of_a_node_lose_next_to_nothing) {
  for (const std::uint32_t bytes : {4 * kib, 16 * kib}) {
    Setup setup = even_setup(8, 4, host, 15 * kib, 30 * kib);
    setup.fabric.delay = 20'000;
    put_ranks_on_nodes(setup, 8);
    setup.bytes = 8 * bytes;
    setup.together = 2048 * kib / bytes;
    const Report report = ran(setup);
    CHECK(ratio(setup, report) < 1.5);
    CHECK(report.counts.dropped < report.counts.packets / 10'000);
  }
}

TEST(sixty_four_nodes_and_servers_with_sixteen_times_as_much_do) {
  Setup setup = even_setup(64, 64, host, 32 * kib, 64 * kib);
  setup.bytes = 12'000'000;
  const Report report = ran(setup);
  CHECK(ratio(setup, report) > 2);
  CHECK(report.counts.timeouts > 0);
}

TEST(beside_a_flow_of_somebody_else_larger_windows_get_more_of_the_link) {
  double before = 0;
  for (const std::uint32_t credit : {8 * kib, 16 * kib}) {
    Setup setup = even_setup(8, 8, host, 4 * kib, credit);
    setup.bytes = 10'000'000;
    setup.start = second;
    add_foreign_everywhere(setup, 60);
    const Report report = ran(setup);
    const double ours = 1 / ratio(setup, report);
    const double links = stream_rate(host.rate) * static_cast<double>(setup.foreign.size());
    const double theirs = static_cast<double>(report.foreign_bytes) / (links * static_cast<double>(report.time) / 1e9);
    CHECK(ours < 0.7);
    CHECK(theirs > 0.3);
    CHECK(ours + theirs > 0.85);
    CHECK(ours > 1.1 * before);
    before = ours;
  }
}

TEST(a_window_of_one_segment_becomes_two_on_wires) {
  Setup setup = even_setup(8, 8, host, 16 * kib, 16 * kib);
  setup.config.rate = static_cast<std::uint64_t>(stream_rate(host.rate));
  setup.rounds = 5;
  const Report report = ran(setup);
  CHECK(static_cast<double>(report.rounds.back()) / 1e9 < 1.05 * bound(setup, setup.bytes));
  CHECK_EQ(report.counts.dropped, 0U);
}

TEST(windows_that_follow_the_network_get_about_half_of_it_beside_others) {
  for (const std::uint32_t window : {0U, 100U}) {
    Setup setup = even_setup(8, 8, host, 16 * kib, 32 * kib);
    setup.config.rate = static_cast<std::uint64_t>(stream_rate(host.rate));
    setup.fabric.least_timeout = 10 * millisecond;
    setup.start = second;
    setup.rounds = 10;
    add_foreign_everywhere(setup, window);
    const Report report = ran(setup);
    Time last = 0;
    for (std::size_t i = 5; i < report.rounds.size(); ++i) {
      last += report.rounds[i];
    }
    const double moved = static_cast<double>(setup.bytes) * static_cast<double>(report.rounds.size() - 5);
    const double ours = moved / (static_cast<double>(last) / 1e9) / stream_rate(host.rate);
    const double links = stream_rate(host.rate) * static_cast<double>(setup.foreign.size());
    const double theirs = static_cast<double>(report.foreign_bytes) / (links * static_cast<double>(report.time) / 1e9);
    CHECK(ours > 0.45);
    CHECK(theirs > 0.4);
  }
}

TEST(a_slow_host_is_as_slow_as_it_is) {
  Setup setup = even_setup(4, 4, host, 8 * kib, 32 * kib);
  setup.fabric.hosts[2].rate /= 2;
  CHECK(std::abs(ratio(setup, ran(setup)) - 2) < 0.1);
}

TEST(the_same_setup_gives_the_same_report) {
  Setup setup = even_setup(4, 2, host, 8 * kib, 16 * kib);
  setup.bytes = 1'000'000;
  setup.rounds = 3;
  const Report one = ran(setup);
  const Report again = ran(setup);
  CHECK_EQ(one.time, again.time);
  CHECK_EQ(one.events, again.events);
  CHECK_EQ(one.rounds.size(), 3U);
  setup.seed = 2;
  CHECK(ran(setup).time != one.time);
}

// Openings, admissions and results each go round in an order that depends on who sends them: nobody's port is
// everybody's first. With admissions in the order of the members these take 2.0, 1.56 and 1.30 times the bound.
TEST(arrays_of_a_few_segments_a_server_do_not_meet_at_one_port) {
  struct Case {
    std::uint64_t bytes;
    double most;
  };
  for (const Case& each : {Case{256 * kib, 1.8}, Case{512 * kib, 1.45}, Case{900'000, 1.25}}) {
    Setup setup = even_setup(8, 8, HostSettings{125e6, 256 * kib, 0}, 15 * kib, 30 * kib);
    setup.fabric.delay = 25'000;
    setup.bytes = each.bytes;
    setup.rounds = 3;
    CHECK(ratio(setup, ran(setup)) < each.most);
  }
}

// With equal segments these take 2.18, 1.70, 1.34 and 1.19 times the bound.
TEST(smaller_segments_of_short_operations_let_results_come_while_contributions_go) {
  struct Case {
    std::uint64_t bytes;
    double most;
  };
  for (const Case& each :
       {Case{128 * kib, 1.95}, Case{256 * kib, 1.5}, Case{512 * kib, 1.27}, Case{1000 * kib, 1.16}}) {
    Setup setup = even_setup(8, 8, HostSettings{125e6, 256 * kib, 0}, 16 * kib, 32 * kib);
    setup.fabric.delay = 20'000;
    setup.bytes = each.bytes;
    setup.rounds = 10;
    const double alike = ratio(setup, ran(setup));
    setup.config.least_segment = 8 * kib;
    const double smaller = ratio(setup, ran(setup));
    CHECK(smaller < each.most);
    CHECK(smaller < 0.95 * alike);
  }
}

TEST(a_ring_fills_wires_with_the_windows_of_servers) {
  Setup setup = even_setup(8, 0, host, 15 * kib, 30 * kib);
  setup.config.ring = true;
  CHECK(ratio(setup, ran(setup)) < 1.05);
}

// Two hops instead of 2(n-1). Where every host has a processor of its own, as in no lab of one machine.
TEST(servers_in_the_nodes_are_faster_than_a_ring_for_small_arrays) {
  for (const std::uint64_t bytes : {17 * kib, 32 * kib, 64 * kib, 128 * kib, 256 * kib, 512 * kib, 900 * kib}) {
    Setup setup = even_setup(8, 0, host, 15 * kib, 30 * kib);
    setup.bytes = bytes;
    setup.config.rate = static_cast<std::uint64_t>(1 / bound(setup, 1));
    setup.rounds = 10;
    const double servers = ratio(setup, ran(setup));
    setup.config.ring = true;
    CHECK(servers < ratio(setup, ran(setup)));
  }
}

TEST(a_setup_that_cannot_be_is_refused) {
  Setup setup = even_setup(4, 2, host, 8 * kib, 16 * kib);
  setup.fabric.hosts.pop_back();
  CHECK_EQ(run(setup).failure, "there must be a host for each node and each dedicated server: 6, not 5");
  setup = even_setup(4, 2, host, 8 * kib, 4 * kib);
  CHECK(run(setup).failure.find("credit") != std::string::npos);
  setup = even_setup(4, 2, host, 8 * kib, 16 * kib);
  setup.longest = millisecond;
  CHECK_EQ(run(setup).failure, "the run does not end: 4 ranks wait");
}

RUN_TESTS()
