// Windows that grow and shrink (protocol/congestion_controller.h), against models of a link that can be worked out on
// paper.
#include "protocol/congestion_controller.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "check.h"

namespace shoal {
namespace {

constexpr std::uint32_t base = 16 * 1024;
constexpr double link = 50e6;  // bytes per second
constexpr std::uint32_t servers = 8;

JobConfig config_with(std::uint64_t rate) {
  JobConfig config;
  config.hosts.assign(8, "host");
  config.server_names.assign(servers, "server");
  config.server_ranks.assign(servers, -1);
  config.weights.assign(servers, 1);
  config.segment = base;
  config.credit = base;
  config.rate = rate;
  return config;
}

// A job that has as much to move as it may: `rate_of` says what it gets with so much on its way.
class Job {
 public:
  explicit Job(const JobConfig& config) : congestion_(config) { congestion_.begin(0); }

  // Runs for some seconds, losing packets while it has more on its way than `queue`. Returns the share of the link that
  // it had in the last half of that time.
  double run(double seconds, const std::function<double(double)>& rate_of, double queue = 1e12) {
    const Time from = now_;
    const Time until = now_ + static_cast<Time>(seconds * second);
    double moved = 0;
    while (now_ < until) {
      const double on_its_way = static_cast<double>(servers) * setting_.credit;
      const double rate = rate_of(on_its_way);
      repairs_ += on_its_way > queue ? 1 : 0;
      const Time step = second / 500;
      now_ += step;
      const auto bytes = static_cast<std::uint64_t>(rate * static_cast<double>(step) / second);
      moved += now_ > from + (until - from) / 2 ? static_cast<double>(bytes) : 0;
      if (!congestion_.answered(bytes / ranks_, bytes / ranks_ * (ranks_ - 1), now_)) {
        continue;
      }
      if (const auto setting = congestion_.decide(repairs_, now_)) {
        changes_ += setting->credit > setting_.credit ? 1 : 0;
        setting_ = *setting;
      }
    }
    return moved / (seconds / 2) / link;
  }

  void idle(double seconds) {
    congestion_.pause(now_);
    now_ += static_cast<Time>(seconds * second);
    congestion_.begin(now_);
  }

  // From now on only one of so many ranks of each node is known.
  void know_one_of(std::uint64_t ranks) { ranks_ = ranks; }

  std::uint32_t credit() const { return setting_.credit; }
  bool competing() const { return setting_.competing; }
  int growths() const { return changes_; }

 private:
  CongestionController congestion_;
  Time now_ = 0;
  CongestionController::Setting setting_{base, false};
  std::uint64_t repairs_ = 0;
  std::uint64_t ranks_ = 1;
  int changes_ = 0;
};

double alone(double /*unanswered*/) { return link; }

// A flow that keeps this much on its way, whatever else there is.
std::function<double(double)> beside_fixed(double others) {
  return [others](double unanswered) { return link * unanswered / (unanswered + others); };
}

// A flow that fills what is left of a queue.
std::function<double(double)> beside_filler(double queue) {
  return [queue](double unanswered) { return link * std::min(1.0, unanswered / queue); };
}

TEST(alone_nothing_changes) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  CHECK(job.run(10, alone) > 0.99);
  CHECK_EQ(job.growths(), 0);
  CHECK_EQ(job.credit(), base);
}

// What others of the node move is only guessed: for a time one rank may move more than its part, and that is no rate
// that the job has alone.
TEST(one_of_the_ranks_of_a_node_speaks_for_all) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  job.know_one_of(8);
  job.run(10, alone);
  job.run(5, [](double /*unanswered*/) { return 2 * link; });
  job.run(10, alone);
  CHECK_EQ(job.growths(), 0);
  CHECK_EQ(job.credit(), base);
  CHECK(job.run(30, beside_fixed(1e6)) > 0.45);
}

TEST(beside_others_about_half) {
  for (double on_their_way : {200e3, 500e3, 2e6, 8e6}) {
    Job job(config_with(static_cast<std::uint64_t>(link)));
    const double share = job.run(30, beside_fixed(on_their_way));
    CHECK(share > 0.45);
    CHECK(share < 0.62);
    Job other(config_with(static_cast<std::uint64_t>(link)));
    const double of_queue = other.run(30, beside_filler(4 * on_their_way));
    CHECK(of_queue > 0.45);
    CHECK(of_queue < 0.62);
  }
}

TEST(back_when_they_are_gone) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  job.run(20, beside_fixed(1e6));
  CHECK(job.credit() > 2 * base);
  job.run(5, alone);
  CHECK_EQ(job.credit(), 2 * base);
  CHECK(job.run(20, beside_fixed(1e6)) > 0.45);
}

// Nobody else is there: growing brings nothing, is taken back, and is tried ever more rarely.
TEST(a_slower_link_is_no_competitor) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  const auto slow = [](double /*unanswered*/) { return link / 10; };
  job.run(60, slow);
  CHECK(job.growths() <= 8);
  job.run(600, slow);
  CHECK(job.growths() <= 20);
  CHECK_EQ(job.credit(), base);
}

// The first growths are tried while the others' flow is still becoming larger.
TEST(others_that_come_slowly) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  double others = 100e3;
  const double share = job.run(60, [&others](double unanswered) {
    others = std::min(4e6, others * 1.0005);
    return link * unanswered / (unanswered + others);
  });
  CHECK(share > 0.4 && share < 0.65);
}

// Somebody who takes no notice of losses in a short queue: more of ours on its way is only lost.
constexpr double short_queue = 1.5 * servers * base;

std::function<double(double)> beside_reckless(const Job& job) {
  return [&job](double unanswered) { return job.competing() ? link * unanswered / (unanswered + 300e3) : 0.4 * link; };
}

TEST(insists_where_larger_windows_alone_bring_nothing) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  const double share = job.run(20, beside_reckless(job), short_queue);
  CHECK(job.competing());
  CHECK(share > 0.45 && share < 0.62);
  job.run(5, alone);
  CHECK(!job.competing());
  CHECK_EQ(job.credit(), 2 * base);
}

TEST(without_losses_nobody_insists) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  bool insisted = false;
  job.run(60, [&](double /*unanswered*/) {
    insisted = insisted || job.competing();
    return 0.4 * link;
  });
  CHECK(!insisted);
}

TEST(larger_windows_come_before_insisting) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  bool insisted = false;
  const auto beside = beside_fixed(1e6);
  job.run(30, [&](double unanswered) {
    insisted = insisted || job.competing();
    return beside(unanswered);
  });
  CHECK(!insisted);
}

TEST(insisting_that_brings_nothing_is_taken_back) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  double competing = 0;
  double samples = 0;
  job.run(
      600,
      [&](double /*unanswered*/) {
        competing += job.competing() ? 1 : 0;
        ++samples;
        return 0.4 * link;
      },
      short_queue);
  CHECK(competing > 0);
  CHECK(competing / samples < 0.02);
}

TEST(yields_again_where_that_has_become_better) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  job.run(20, beside_reckless(job), short_queue);
  CHECK(job.competing());
  job.run(20, [&job](double /*unanswered*/) { return (job.competing() ? 0.3 : 0.4) * link; });
  CHECK(!job.competing());
}

TEST(what_is_alone_is_learned_where_nothing_was_measured_right) {
  Job job(config_with(static_cast<std::uint64_t>(link / 10)));
  job.run(1, alone);
  CHECK(job.run(20, beside_fixed(1e6)) > 0.45);
}

// What is beyond the queue is dropped and costs time.
TEST(shrinks_where_queues_are_shorter_than_the_window) {
  JobConfig config = config_with(static_cast<std::uint64_t>(link));
  config.segment = base / 2;
  for (const double at_least : {0.3, 0.6}) {
    Job job(config);
    const auto small_queue = [=](double on_its_way) { return link * (on_its_way > 100e3 ? at_least : 0.95); };
    CHECK(job.run(20, small_queue, 100e3) > 0.9);
    CHECK_EQ(job.credit(), base / 2);
    // And back, when they are not any more but what is on its way is too little.
    CHECK(job.run(60, [=](double on_its_way) { return link * (on_its_way < 100e3 ? at_least : 0.95); }) > 0.9);
    CHECK(job.credit() > base / 2);
  }
}

TEST(a_processor_that_is_too_slow_is_left_alone) {
  JobConfig config = config_with(static_cast<std::uint64_t>(link));
  config.segment = base / 2;
  Job job(config);
  job.run(300, [](double /*unanswered*/) { return 0.7 * link; });
  CHECK_EQ(job.credit(), base);
  CHECK_EQ(job.growths(), 0);
}

TEST(a_pause_is_not_slowness) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  for (int i = 0; i < 100; ++i) {
    job.run(0.07, alone);
    job.idle(0.5);
  }
  CHECK_EQ(job.growths(), 0);
}

// Operations that are waited for one by one; and steps that compute between short bursts.
TEST(short_bursts_are_measured_too) {
  struct Case {
    double burst;
    double pause;
  };
  for (const Case& one : {Case{0.03, 0.001}, Case{0.04, 0.03}, Case{0.01, 0.5}}) {
    Job job(config_with(static_cast<std::uint64_t>(link)));
    double share = 0;
    for (int i = 0; i < 4000; ++i) {
      share = job.run(one.burst, beside_fixed(1e6));
      job.idle(one.pause);
    }
    CHECK(share > 0.45 && share < 0.65);
  }
}

// A growth that did not pay, long ago, says nothing of what is now.
TEST(what_did_not_pay_is_forgotten_when_all_is_well) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  job.run(300, [](double /*unanswered*/) { return 0.4 * link; }, short_queue);
  job.run(5, alone);
  bool insisted = false;
  const auto beside = beside_fixed(1e6);
  const double share = job.run(5, [&](double unanswered) {
    insisted = insisted || job.competing();
    return beside(unanswered);
  });
  CHECK(!insisted);
  CHECK(share > 0.45);
}

// More than half with it, less without: it is not given up for one lucky sample.
TEST(insisting_ends_only_after_some_time_of_more_than_half) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  job.run(20, beside_reckless(job), short_queue);
  CHECK(job.competing());
  bool yielded = false;
  int step = 0;
  job.run(20, [&](double /*unanswered*/) {
    yielded = yielded || !job.competing();
    return (++step / 50 % 2 == 0 ? 0.68 : 0.53) * link;  // 0.1 s each
  });
  CHECK(!yielded);
}

// Somebody else has filled the queues meanwhile, and makes room when the job goes on.
TEST(what_follows_a_pause_is_not_measured) {
  Job job(config_with(static_cast<std::uint64_t>(link)));
  for (int i = 0; i < 100; ++i) {
    job.run(0.04, [](double /*unanswered*/) { return 0.1 * link; });
    job.run(0.08, alone);
    job.idle(0.5);
  }
  CHECK_EQ(job.growths(), 0);
}

TEST(without_a_rate_nothing_changes) {
  Job job(config_with(0));
  job.run(20, beside_fixed(1e6));
  CHECK_EQ(job.growths(), 0);
}

TEST(stays_within_its_limits) {
  const JobConfig config = config_with(static_cast<std::uint64_t>(link));
  Job job(config);
  job.run(120, beside_filler(1e12));
  CHECK(job.credit() <= config.most_credit());
}

}  // namespace
}  // namespace shoal

RUN_TESTS()
