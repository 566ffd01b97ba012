// Ranks that wait for each other in a circle, in random programs on a network without order between links: who is told
// can really never go on, and nobody who cannot is left untold.
#include "protocol/coordinator/circles.h"

#include <algorithm>
#include <deque>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace {

using namespace shoal;
using wire::Type;

constexpr int random_programs = 1000;

// A thread of a rank: it calls one operation after the other, and waits for each, or goes on at once.
struct Step {
  std::size_t operation = 0;
  bool waits = true;
};

struct Thread {
  std::vector<Step> steps;
  std::size_t at = 0;
  bool blocked = false;
};

struct Rank {
  std::vector<Thread> threads;
  std::set<std::size_t> called;
  std::set<std::size_t> failed;  // as it has heard
  std::uint64_t changes = 1;
  std::uint64_t told = 0;

  // Who waits for what is to fail, as it has heard, goes on before long.
  bool is_blocked() const {
    bool any = false;
    for (const Thread& thread : threads) {
      if (thread.blocked && failed.count(thread.steps[thread.at].operation) > 0) {
        return false;
      }
      if (thread.at < thread.steps.size() && !thread.blocked) {
        return false;
      }
      any = any || thread.blocked;
    }
    return any;
  }
};

struct Job {
  std::vector<std::vector<std::uint32_t>> members;  // by operation
  std::vector<Rank> ranks;

  bool is_complete(std::size_t operation) const {
    return std::all_of(members[operation].begin(), members[operation].end(),
                       [&](std::uint32_t rank) { return ranks[rank].called.count(operation) > 0; });
  }
  // Whether this thread can do something; does it.
  bool can_go_on(std::uint32_t rank, const Thread& thread) const {
    if (thread.at == thread.steps.size()) {
      return false;
    }
    const std::size_t operation = thread.steps[thread.at].operation;
    return !thread.blocked || is_complete(operation) || ranks[rank].failed.count(operation) > 0;
  }
  void go_on(std::uint32_t index, Thread& thread) {
    Rank& rank = ranks[index];
    const Step& step = thread.steps[thread.at];
    ++rank.changes;
    if (!thread.blocked) {
      rank.called.insert(step.operation);
      thread.blocked = step.waits;
    } else {
      thread.blocked = false;
    }
    thread.at += thread.blocked ? 0 : 1;
  }
  // What comes of it if nobody is told anything. The order of threads makes no difference to where it ends.
  void run_out() {
    for (bool any = true; any;) {
      any = false;
      for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
        for (Thread& thread : ranks[rank].threads) {
          while (can_go_on(rank, thread)) {
            go_on(rank, thread);
            any = true;
          }
        }
      }
    }
  }
};

wire::Wait wait_for(std::size_t operation, const std::vector<std::uint32_t>& members) {
  wire::Wait wait{{{}, static_cast<std::uint32_t>(operation), "step"}, Collective::barrier, wire::strides_of(members)};
  for (std::uint32_t member : members) {
    wait.call.group.bytes[member / 8 % wait.call.group.bytes.size()] |= std::byte{1} << (member % 8);
  }
  return wait;
}

// Steps of all in one order, which can be carried out; then some are left out, changed about or not waited for.
Job random_job(std::mt19937_64& random) {
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  Job job;
  job.ranks.resize(2 + below(5));
  for (Rank& rank : job.ranks) {
    rank.threads.resize(below(4) == 0 ? 2 : 1);
  }
  const std::size_t operations = 2 + below(12);
  for (std::size_t operation = 0; operation < operations; ++operation) {
    std::vector<std::uint32_t> members;
    const bool of_all = below(2) == 0;
    for (std::uint32_t rank = 0; rank < job.ranks.size(); ++rank) {
      if (of_all || below(2) == 0) {
        members.push_back(rank);
        std::vector<Thread>& threads = job.ranks[rank].threads;
        threads[below(threads.size())].steps.push_back({operation, below(5) > 0});
      }
    }
    job.members.push_back(std::move(members));
  }
  for (std::size_t faults = below(4); faults > 0; --faults) {
    std::vector<Thread>& threads = job.ranks[below(job.ranks.size())].threads;
    std::vector<Step>& steps = threads[below(threads.size())].steps;
    if (steps.size() > 1) {
      const std::size_t at = below(steps.size() - 1);
      if (below(2) == 0) {
        steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        std::swap(steps[at], steps[at + 1]);
      }
    }
  }
  return job;
}

struct Frame {
  Type type{};
  wire::Bytes bytes;
};

// The ranks' side of the conversation is the worker's: worker/waits.cpp.
class World {
 public:
  World(Job job, std::uint64_t seed) : job_(std::move(job)), random_(seed) {
    for (std::size_t rank = 0; rank < job_.ranks.size(); ++rank) {
      config_.hosts.push_back("host" + std::to_string(rank));
    }
    up_.resize(job_.ranks.size());
    down_.resize(job_.ranks.size());
  }

  // How many circles there were.
  int run() {
    const std::size_t ranks = job_.ranks.size();
    for (int idle = 0; idle < 400;) {
      const auto rank = static_cast<std::uint32_t>(random_() % ranks);
      now_ += second / 1000 * static_cast<Time>(random_() % 100);
      bool moved = false;
      switch (random_() % 6) {
        case 0:
        case 1:
          moved = take_step(rank);
          break;
        case 2:
          moved = look(rank);
          break;
        case 3:
          moved = deliver_up(rank);
          break;
        case 4:
          moved = deliver_down(rank);
          break;
        default:
          moved = circles_.deadline() <= now_;
          post(circles_.on_time(now_));
          moved = moved || circles_.deadline() != never;
      }
      idle = moved ? 0 : idle + 1;
    }
    return found_;
  }

  // Of those that are left where they are: whether all wait for somebody who has ended, or for one who waits for such.
  bool nobody_is_in_a_circle() const {
    std::set<std::uint32_t> stuck;
    for (std::uint32_t rank = 0; rank < job_.ranks.size(); ++rank) {
      if (job_.ranks[rank].is_blocked()) {
        stuck.insert(rank);
      }
    }
    const auto is_free = [&](std::uint32_t rank) {
      const std::vector<Thread>& threads = job_.ranks[rank].threads;
      return std::any_of(threads.begin(), threads.end(), [&](const Thread& thread) {
        if (!thread.blocked) {
          return false;
        }
        const std::size_t operation = thread.steps[thread.at].operation;
        const std::vector<std::uint32_t>& members = job_.members[operation];
        return std::none_of(members.begin(), members.end(), [&](std::uint32_t member) {
          return stuck.count(member) > 0 && job_.ranks[member].called.count(operation) == 0;
        });
      });
    };
    while (std::erase_if(stuck, is_free) > 0) {
    }
    return stuck.empty();
  }

 private:
  bool take_step(std::uint32_t rank) {
    std::vector<Thread>& threads = job_.ranks[rank].threads;
    Thread& thread = threads[random_() % threads.size()];
    if (!job_.can_go_on(rank, thread)) {
      return false;
    }
    job_.go_on(rank, thread);
    return true;
  }

  bool look(std::uint32_t index) {
    Rank& rank = job_.ranks[index];
    if (!rank.is_blocked() || std::exchange(rank.told, rank.changes) == rank.changes) {
      return false;
    }
    wire::Waits waits{rank.changes, {}};
    for (const Thread& thread : rank.threads) {
      if (thread.blocked) {
        const std::size_t operation = thread.steps[thread.at].operation;
        waits.waits.push_back(wait_for(operation, job_.members[operation]));
      }
    }
    up_[index].push_back({Type::waits, wire::encode(waits)});
    return true;
  }

  bool deliver_up(std::uint32_t rank) {
    if (up_[rank].empty()) {
      return false;
    }
    const Frame frame = std::move(up_[rank].front());
    up_[rank].pop_front();
    if (frame.type == Type::waits) {
      wire::Waits waits;
      CHECK(wire::decode(frame.bytes, waits).ok());
      post(circles_.hear(rank, std::move(waits), now_));
    } else {
      wire::Calls calls;
      CHECK(wire::decode(frame.bytes, calls).ok());
      post(circles_.hear(rank, calls, now_));
    }
    return true;
  }

  bool deliver_down(std::uint32_t index) {
    if (down_[index].empty()) {
      return false;
    }
    const Frame frame = std::move(down_[index].front());
    down_[index].pop_front();
    Rank& rank = job_.ranks[index];
    if (frame.type == Type::probe) {
      wire::Probe probe;
      CHECK(wire::decode(frame.bytes, probe).ok());
      wire::Calls calls{probe.round, rank.is_blocked() ? rank.changes : 0, {}};
      for (const wire::Call& call : probe.calls) {
        calls.called.push_back(rank.called.count(call.occurrence) > 0);
      }
      up_[index].push_back({Type::calls, wire::encode(calls)});
    } else {
      wire::Circle circle;
      CHECK(wire::decode(frame.bytes, circle).ok());
      for (const wire::Call& call : circle.calls) {
        rank.failed.insert(call.occurrence);
      }
    }
    return true;
  }

  void post(Circles::Messages messages) {
    const bool any =
        std::any_of(messages.begin(), messages.end(), [](const auto& message) { return message.type == Type::circle; });
    found_ += any ? 1 : 0;
    Job otherwise = job_;
    otherwise.run_out();
    for (Circles::Message& message : messages) {
      if (message.type == Type::circle) {
        check(message, otherwise);
      }
      down_[message.rank].push_back({message.type, std::move(message.bytes)});
    }
  }

  // Nobody is told, or asked, of what it is no member of.
  void check(const Circles::Message& message, const Job& otherwise) const {
    wire::Circle circle;
    CHECK(wire::decode(message.bytes, circle).ok());
    CHECK(!circle.calls.empty());
    for (const wire::Call& call : circle.calls) {
      CHECK(!otherwise.is_complete(call.occurrence));
      const std::vector<std::uint32_t>& members = otherwise.members[call.occurrence];
      CHECK(std::count(members.begin(), members.end(), message.rank) == 1);
    }
  }

  Job job_;
  std::mt19937_64 random_;
  JobConfig config_;
  Circles circles_{config_};
  Time now_ = second;
  int found_ = 0;
  std::vector<std::deque<Frame>> up_;
  std::vector<std::deque<Frame>> down_;
};

JobConfig three() {
  JobConfig config;
  config.hosts = {"a", "b", "c"};
  return config;
}

wire::Waits waits_for(std::size_t operation, const std::vector<std::uint32_t>& members) {
  return {1, {wait_for(operation, members)}};
}

}  // namespace

TEST(random_programs_hear_of_every_circle_and_of_none_that_is_not) {
  int with_circle = 0;
  for (std::uint64_t seed = 0; seed < 2 * random_programs; ++seed) {
    std::mt19937_64 random(seed);
    World world(random_job(random), seed);
    const int found = world.run();
    if (!world.nobody_is_in_a_circle()) {
      std::cerr << "seed " << seed << ": a circle that nobody was told of\n";
      CHECK(false);
    }
    with_circle += found > 0 ? 1 : 0;
  }
  std::cout << with_circle << " of " << 2 * random_programs << " programs had a circle\n";
  CHECK(with_circle > random_programs / 4);
  CHECK(with_circle < 2 * random_programs - random_programs / 4);
}

TEST(all_who_wait_are_named_with_what_they_wait_for) {
  const JobConfig config = three();
  Circles circles(config);
  CHECK(circles.hear(0, waits_for(0, {0, 1, 2}), 0).empty());
  CHECK(circles.hear(1, waits_for(1, {0, 1, 2}), 0).empty());
  CHECK(circles.hear(2, waits_for(1, {0, 1, 2}), second / 2).empty());
  CHECK(circles.on_time(circles.deadline()).empty());  // which are suspected from now on
  CHECK_EQ(circles.on_time(circles.deadline()).size(), 3U);
  CHECK(circles.hear(0, wire::Calls{1, 1, {true, false}}, 2 * second).empty());
  CHECK(circles.hear(1, wire::Calls{1, 1, {false, true}}, 2 * second).empty());
  const Circles::Messages told = circles.hear(2, wire::Calls{1, 1, {false, true}}, 2 * second);
  CHECK_EQ(told.size(), 3U);
  wire::Circle circle;
  CHECK(wire::decode(told[0].bytes, circle).ok());
  CHECK_EQ(circle.calls.size(), 2U);
  for (const char* words :
       {"rank 0 (a) waits in barrier 'step', which ranks 1 (b), 2 (c) have not called",
        "rank 1 (b) waits in barrier 'step', which rank 0 (a) has not called", "rank 2 (c) waits in"}) {
    if (circle.why.find(words) == std::string::npos) {
      std::cerr << circle.why << "\n";
      CHECK(false);
    }
  }
}

TEST(who_has_moved_since_or_does_not_answer_is_in_no_circle) {
  const JobConfig config = three();
  for (const bool answers : {true, false}) {
    Circles circles(config);
    CHECK(circles.hear(0, waits_for(0, {0, 1}), 0).empty());
    CHECK(circles.hear(1, waits_for(1, {0, 1}), 0).empty());
    CHECK(circles.on_time(circles.deadline()).empty());
    CHECK_EQ(circles.on_time(circles.deadline()).size(), 2U);
    CHECK(circles.hear(0, wire::Calls{1, 1, {true, false}}, 2 * second).empty());
    if (answers) {
      CHECK(circles.hear(1, wire::Calls{1, 2, {false, true}}, 2 * second).empty());
    } else {
      CHECK(circles.on_time(circles.deadline()).empty());
    }
    CHECK_EQ(circles.deadline(), never);
  }
}

TEST(who_is_lost_or_has_left_is_in_no_circle) {
  const JobConfig config = three();
  Circles circles(config);
  CHECK(circles.hear(0, waits_for(0, {0, 1}), 0).empty());
  CHECK(circles.hear(1, waits_for(1, {0, 1}), 0).empty());
  CHECK(circles.on_time(circles.deadline()).empty());
  circles.forget(1);
  CHECK(circles.on_time(circles.deadline()).empty());
  CHECK_EQ(circles.deadline(), never);
}

TEST(that_all_but_one_of_many_ranks_wait_costs_steps_as_there_are_ranks_and_nothing_is_sent) {
  for (const std::uint32_t ranks : {1024U, 16'384U}) {
    JobConfig config;
    config.hosts.assign(ranks, "a");
    std::vector<std::uint32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0U);
    const wire::Waits waits = waits_for(0, all);
    CHECK(wire::encode(waits).size() < 100);
    Circles circles(config);
    Time now = second;
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      now += 2 * second / ranks;  // within two seconds
      CHECK(circles.on_time(now).empty());
      CHECK(circles.hear(rank, waits, now).empty());
    }
    while (circles.deadline() != never) {
      CHECK(circles.on_time(circles.deadline()).empty());
    }
    // Looked at 20 times, with a few steps for each rank.
    CHECK(circles.steps() > ranks);
    CHECK(circles.steps() < 20ULL * 10 * ranks);
  }
}

TEST(ten_thousand_operations_of_each_of_eight_ranks_are_searched_in_steps_as_there_are_waits) {
  JobConfig config;
  config.hosts.assign(8, "a");
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4, 5, 6, 7};
  constexpr std::size_t each = 10'000;
  Circles circles(config);
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    wire::Waits waits{1, {}};
    for (std::size_t i = 0; i < each; ++i) {
      waits.waits.push_back(wait_for(rank * each + i, all));
    }
    CHECK(wire::encode(waits).size() < wire::circle_bytes);
    CHECK(circles.hear(rank, std::move(waits), 0).empty());
  }
  CHECK(circles.on_time(circles.deadline()).empty());
  CHECK(circles.steps() < 8 * each * 10);
  // To ask each about all of it would be too much for one frame: nothing is said.
  CHECK(circles.on_time(circles.deadline()).empty());
  CHECK_EQ(circles.deadline(), never);
}

TEST(groups_are_told_as_strides_of_ranks) {
  using Strides = std::vector<wire::Stride>;
  CHECK(wire::strides_of({}) == Strides{});
  CHECK((wire::strides_of({7}) == Strides{{7, 1, 1}}));
  CHECK((wire::strides_of({24, 0, 8, 16}) == Strides{{0, 4, 8}}));
  CHECK((wire::strides_of({0, 1, 2, 8, 9, 10, 20}) == Strides{{0, 3, 1}, {8, 3, 1}, {20, 1, 1}}));
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < 40; ++rank) {
      if (random() % 3 > 0) {
        ranks.push_back(rank);
      }
    }
    const Strides strides = wire::strides_of(ranks);
    CHECK(wire::ranks_of(strides) == ranks);
    for (std::uint32_t rank = 0; rank < 41; ++rank) {
      CHECK_EQ(std::any_of(strides.begin(), strides.end(), [rank](const auto& stride) { return stride.has(rank); }),
               std::count(ranks.begin(), ranks.end(), rank) > 0);
    }
    wire::Waits waits = waits_for(0, {});
    waits.waits[0].members = strides;
    wire::Waits read;
    CHECK(wire::decode(wire::encode(waits), read).ok());
    CHECK(read.waits[0].members == strides);
  }
  // No rank twice, and none that no job has.
  for (const Strides& strides : {Strides{{0, 0, 1}}, Strides{{0, 2, 0}}, Strides{{0, 3, 1}, {2, 1, 1}},
                                 Strides{{1U << 30U, 1, 1}}, Strides{{0, 1U << 31U, 1}}, Strides{{0, 3, 1U << 31U}}}) {
    wire::Waits waits = waits_for(0, {});
    waits.waits[0].members = strides;
    wire::Waits read;
    CHECK(!wire::decode(wire::encode(waits), read).ok());
  }
}

RUN_TESTS()
