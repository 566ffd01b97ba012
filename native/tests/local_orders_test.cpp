// The words that ranks of a machine share, in every order in which they may be seen (seen_orders.h): how chunks flow in
// each of the ways, how the leader fails an operation that others may be about to begin, and that nobody sleeps who
// could go on.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/keys.h"
#include "protocol/local/flow.h"
#include "protocol/local/local_group.h"
#include "tests/check.h"
#include "tests/local_worlds.h"

namespace {

using namespace shoal;
using namespace shoal::local;
using seen_orders::Choices;
using seen_orders::Order;

// Whose turn it is: a rank goes on until it finds nothing to do, but for so many interruptions. A rank that found
// nothing sleeps, unless its bell has rung since it began to look, and looks again when it is rung.
class Turns final : public Bells {
 public:
  Turns(std::uint32_t ranks, std::uint32_t interruptions, Choices& choices)
      : choices_(choices), asleep_(ranks), rung_(ranks), looks_anew_(ranks, true), interruptions_(interruptions) {}

  // None: all sleep. Else it acts.
  std::optional<std::uint32_t> next() {
    std::vector<std::uint32_t> others;
    for (std::uint32_t rank = 0; rank < asleep_.size(); ++rank) {
      if (!asleep_[rank] && rank != turn_) {
        others.push_back(rank);
      }
    }
    const bool goes_on = turn_ && !asleep_[*turn_];
    if (!goes_on || interruptions_ > 0) {
      const std::size_t ways = others.size() + (goes_on ? 1 : 0);
      if (ways == 0) {
        return std::nullopt;
      }
      const std::uint32_t way = choices_.pick(static_cast<std::uint32_t>(ways));
      if (way < others.size()) {
        interruptions_ -= goes_on ? 1 : 0;
        turn_ = others[way];
      }
    }
    seen_orders::current->act_as(*turn_);
    if (looks_anew_[*turn_]) {
      looks_anew_[*turn_] = rung_[*turn_] = false;
      seen_orders::current->hear();
    }
    return turn_;
  }
  void note(bool did_something) {
    if (!did_something) {
      asleep_[*turn_] = !rung_[*turn_];
      looks_anew_[*turn_] = true;
    }
  }
  void ring(std::uint32_t rank, bool) override {
    seen_orders::current->ring(rank);
    rung_[rank] = true;
    asleep_[rank] = false;
  }

 private:
  Choices& choices_;
  std::vector<bool> asleep_;
  std::vector<bool> rung_;  // since it began to look
  std::vector<bool> looks_anew_;
  std::uint32_t interruptions_;
  std::optional<std::uint32_t> turn_;
};

// Work that is watched.
class WatchedHands : public Hands {
 public:
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes == 0) {
      return;
    }
    seen_orders::current->read(from, bytes);
    seen_orders::current->wrote(to, bytes);
    std::memcpy(to, from, bytes);
  }
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override {
    for (const std::byte* source : sources) {
      seen_orders::current->read(source, count * size_of(dtype));
    }
    seen_orders::current->wrote(destination, count * size_of(dtype));
    reduce(destination, sources, count, dtype, op, divisor);
  }
};

struct alignas(64) Line {
  std::int32_t values[16];
};

struct FlowCase {
  const char* name;
  std::uint32_t ranks;
  std::uint32_t slots;
  std::size_t lines;  // of each array
  bool straight = false;
  bool twice = false;  // once by shares, then as a chain
  std::uint32_t interruptions = 4;
};

// One run: every rank's flow, a step at a time in an order of the path's own. What went wrong; empty: nothing.
std::string run_flows(const FlowCase& one, Choices& choices, Order order = Order::decides, std::uint32_t stale = 0) {
  local::Shape shape;
  shape.ranks = one.ranks;
  shape.mailbox = 64;
  shape.slots = one.slots;
  shape.slot = 64 * one.ranks;
  const sim::HeapGroup memory(shape);
  seen_orders::Memory seen(one.ranks, choices, order, stale);
  seen_orders::current = &seen;
  Turns turns(one.ranks, one.interruptions, choices);
  WatchedHands hands;
  std::vector<Flow> flows;
  flows.reserve(one.ranks);
  std::vector<std::vector<std::vector<Line>>> arrays(one.twice ? 2 : 1);
  for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
    flows.emplace_back(memory, rank, turns, hands);
  }
  for (std::size_t operation = 0; operation < arrays.size(); ++operation) {
    // The first is too small for a chain.
    const std::size_t lines = one.twice && operation == 0 ? one.ranks : one.lines;
    for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
      arrays[operation].emplace_back(lines);
      for (std::size_t line = 0; line < lines; ++line) {
        std::fill_n(arrays[operation][rank][line].values, 16, static_cast<std::int32_t>((rank + 1) * (line + 1)));
      }
    }
    for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
      Transfer transfer;
      transfer.handle = operation;
      transfer.input = transfer.output = reinterpret_cast<std::byte*>(arrays[operation][rank].data());
      transfer.bytes = lines * sizeof(Line);
      transfer.dtype = DType::int32;
      transfer.op = Operator::sum;
      for (std::uint32_t other = 0; other < one.ranks; ++other) {
        transfer.order.push_back(other);
        if (one.straight) {
          auto* const array = reinterpret_cast<std::byte*>(arrays[operation][other].data());
          transfer.arrays.inputs.push_back(array);
          transfer.arrays.outputs.push_back(array);
        }
      }
      seen.act_as(rank);
      flows[rank].admit(std::move(transfer));
    }
  }
  try {
    while (const std::optional<std::uint32_t> rank = turns.next()) {
      turns.note(flows[*rank].step());
    }
    for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
      for (std::size_t operation = 0; operation < arrays.size(); ++operation) {
        if (flows[rank].take_finished() != operation) {
          return "rank " + std::to_string(rank) + " does not come to an end";
        }
      }
      // Its program reads the result.
      for (std::vector<std::vector<Line>>& operation : arrays) {
        seen.act_as(rank);
        seen.read(reinterpret_cast<const std::byte*>(operation[rank].data()), operation[rank].size() * sizeof(Line));
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
    for (std::size_t operation = 0; operation < arrays.size(); ++operation) {
      const std::int32_t sum = static_cast<std::int32_t>(one.ranks * (one.ranks + 1) / 2);
      for (std::size_t line = 0; line < arrays[operation][rank].size(); ++line) {
        if (arrays[operation][rank][line].values[7] != sum * static_cast<std::int32_t>(line + 1)) {
          return "a wrong sum on rank " + std::to_string(rank);
        }
      }
    }
  }
  return "";
}

// Through all paths, or until one goes wrong.
std::string run_through(const std::function<std::string(Choices&)>& run, std::uint64_t& runs) {
  Choices choices;
  runs = 0;
  do {
    ++runs;
    if (std::string wrong = run(choices); !wrong.empty()) {
      return wrong;
    }
  } while (choices.next());
  return "";
}

constexpr FlowCase flow_cases[] = {
    {.name = "shares", .ranks = 2, .slots = 1, .lines = 4},
    {.name = "chain", .ranks = 2, .slots = 1, .lines = 16, .interruptions = 3},
    {.name = "straight", .ranks = 2, .slots = 1, .lines = 4, .straight = true},
    {.name = "shares, then a chain", .ranks = 2, .slots = 1, .lines = 16, .twice = true, .interruptions = 1},
};

TEST(in_whatever_order_ranks_step_chunks_flow_to_their_end_and_no_byte_is_touched_too_early) {
  for (const FlowCase& one : flow_cases) {
    std::uint64_t runs = 0;
    const std::string wrong = run_through([&](Choices& choices) { return run_flows(one, choices); }, runs);
    std::printf("  %s: %llu orders%s%s\n", one.name, static_cast<unsigned long long>(runs), wrong.empty() ? "" : ": ",
                wrong.c_str());
    CHECK(wrong.empty());
  }
}

// Whoever comes last rings for the others. Of two ranks that cannot see each other's counter yet neither is. (Nor in a
// chain, when slots are free again; but to find that takes more orders than a test may run through.)
TEST(counters_that_ranks_saw_change_in_different_orders_would_let_them_sleep_for_ever) {
  for (const FlowCase& one : flow_cases) {
    if (one.lines > 4 && !one.twice) {
      continue;
    }
    std::uint64_t runs = 0;
    const std::string wrong =
        run_through([&](Choices& choices) { return run_flows(one, choices, Order::publishes, 2); }, runs);
    std::printf("  %s, after %llu orders: %s\n", one.name, static_cast<unsigned long long>(runs), wrong.c_str());
    CHECK(wrong.ends_with("does not come to an end"));
  }
}

TEST(counters_that_did_not_publish_would_be_found) {
  for (const FlowCase& one : flow_cases) {
    std::uint64_t runs = 0;
    CHECK(!run_through([&](Choices& choices) { return run_flows(one, choices, Order::nothing); }, runs).empty());
  }
}

// --- The leader fails what others may be about to begin ---

class GroupWorld final : public IdleLocalWorld {
 public:
  explicit GroupWorld(Turns& turns) : turns_(turns) {}

  void ring(std::uint32_t rank, bool always) override { turns_.ring(rank, always); }
  void finish(std::uint64_t, Status status) override { ended = std::move(status); }

  std::optional<Status> ended;

 private:
  Turns& turns_;
};

// The groups of all ranks of a machine, each with one all-reduce to call.
class Ranks {
 public:
  // `stale`: as seen_orders::Memory. `numbers`: of each array.
  Ranks(std::uint32_t count, std::size_t numbers, Choices& choices, Order order, std::uint32_t stale,
        std::uint32_t interruptions)
      : memory_(shape_for(count)),
        seen_(count, choices, order, stale),
        turns_(count, interruptions, choices),
        worlds_(count, GroupWorld(turns_)) {
    seen_orders::current = &seen_;
    JobConfig config;
    config.hosts.assign(count, "here");
    config.eager = config.small = 64;
    std::vector<std::uint32_t> everyone(count);
    std::iota(everyone.begin(), everyone.end(), 0U);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      arrays_.emplace_back(numbers, static_cast<std::int32_t>(rank + 1));
      seen_.act_as(rank);
      groups_.push_back(std::make_unique<LocalGroup>(memory_, config, everyone, rank, false, worlds_[rank]));
      groups_[rank]->add_group(0, world_group_id(count), everyone, std::nullopt);
    }
  }

  LocalGroup& group(std::uint32_t rank) { return *groups_[rank]; }

  void call(std::uint32_t rank) {
    Submission submission;
    submission.handle = rank + 1;
    submission.collective = Collective::all_reduce;
    submission.name = "weight";
    submission.op = Operator::sum;
    submission.dtype = DType::int32;
    submission.shape = {static_cast<std::int64_t>(arrays_[rank].size())};
    submission.input = submission.output = reinterpret_cast<std::byte*>(arrays_[rank].data());
    submission.input_bytes = submission.output_bytes = arrays_[rank].size() * sizeof(std::int32_t);
    submission.timeout = second;
    seen_.act_as(rank);
    groups_[rank]->on_time(0);
    groups_[rank]->call(std::move(submission));
  }
  // Without a choice.
  void drain(std::uint32_t rank) {
    seen_.act_as(rank);
    while (groups_[rank]->step()) {
    }
  }
  // A step of one, then of another, until all sleep.
  void take_turns() {
    while (const std::optional<std::uint32_t> rank = turns_.next()) {
      turns_.note(groups_[*rank]->step() || groups_[*rank]->work());
    }
  }
  // What went wrong where all should end alike; empty: nothing.
  std::string wrong() const {
    const auto count = static_cast<std::int32_t>(arrays_.size());
    for (std::uint32_t rank = 0; rank < arrays_.size(); ++rank) {
      const std::string name = "rank " + std::to_string(rank);
      if (!worlds_[rank].ended) {
        return name + " waits for ever";
      }
      if (worlds_[rank].ended->ok() != worlds_[0].ended->ok()) {
        return "rank 0 ends with '" + worlds_[0].ended->message + "', " + name + " with '" +
               worlds_[rank].ended->message + "'";
      }
      const auto is_sum = [&](std::int32_t value) { return value == count * (count + 1) / 2; };
      if (worlds_[rank].ended->ok() && !std::all_of(arrays_[rank].begin(), arrays_[rank].end(), is_sum)) {
        return "a wrong sum on " + name;
      }
    }
    return "";
  }
  bool all_ended_well() const {
    return std::all_of(worlds_.begin(), worlds_.end(), [](const GroupWorld& world) { return world.ended->ok(); });
  }

 private:
  static local::Shape shape_for(std::uint32_t count) {
    local::Shape shape;
    shape.ranks = count;
    shape.mailbox = 4096;
    shape.slot = 4096;
    shape.slots = 1;
    return shape;
  }

  const sim::HeapGroup memory_;
  seen_orders::Memory seen_;
  Turns turns_;
  std::vector<std::vector<std::int32_t>> arrays_;
  std::vector<GroupWorld> worlds_;
  std::vector<std::unique_ptr<LocalGroup>> groups_;
};

// Three ranks; the time is out on the first when the third calls. All end alike.
std::string run_failure(Choices& choices, Order order, std::uint32_t interruptions) {
  Ranks ranks(3, 1, choices, order, 2, interruptions);
  ranks.call(0);
  ranks.call(1);
  ranks.drain(0);
  ranks.drain(1);
  ranks.drain(0);
  // From here on a step each, in any order. The clock of the others stands still.
  ranks.call(2);
  ranks.group(0).on_time(2 * second);
  ranks.take_turns();
  return ranks.wrong();
}

TEST(all_ranks_agree_whether_an_operation_whose_time_is_out_has_failed_in_whatever_order_they_look) {
  std::uint64_t runs = 0;
  const std::string wrong = run_through([](Choices& choices) { return run_failure(choices, Order::decides, 4); }, runs);
  std::printf("  %llu orders%s%s\n", static_cast<unsigned long long>(runs), wrong.empty() ? "" : ": ", wrong.c_str());
  CHECK(wrong.empty());
}

TEST(words_that_ranks_saw_change_in_different_orders_would_be_found) {
  std::uint64_t runs = 0;
  const std::string wrong =
      run_through([](Choices& choices) { return run_failure(choices, Order::publishes, 1); }, runs);
  std::printf("  after %llu orders: %s\n", static_cast<unsigned long long>(runs), wrong.c_str());
  CHECK(!wrong.empty());
}

// --- Nobody sleeps who could go on ---

std::string run_calls(Choices& choices, std::uint32_t count, std::size_t numbers, std::uint32_t interruptions) {
  Ranks ranks(count, numbers, choices, Order::decides, 0, interruptions);
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    ranks.call(rank);
  }
  ranks.take_turns();
  if (std::string wrong = ranks.wrong(); !wrong.empty()) {
    return wrong;
  }
  return ranks.all_ended_well() ? "" : "it fails";
}

TEST(all_ranks_come_to_the_end_of_what_they_call_in_whatever_order_they_step) {
  struct Case {
    const char* name;
    std::uint32_t ranks;
    std::size_t numbers;
    std::uint32_t interruptions;
  };
  for (const Case& one : {Case{"small, 2 ranks", 2, 1, 8}, Case{"small, 3 ranks", 3, 1, 3},
                          Case{"large, 2 ranks", 2, 2000, 2}, Case{"large, 3 ranks", 3, 2000, 1}}) {
    std::uint64_t runs = 0;
    const std::string wrong = run_through(
        [&](Choices& choices) { return run_calls(choices, one.ranks, one.numbers, one.interruptions); }, runs);
    std::printf("  %s: %llu orders%s%s\n", one.name, static_cast<unsigned long long>(runs), wrong.empty() ? "" : ": ",
                wrong.c_str());
    CHECK(wrong.empty());
  }
}

}  // namespace

RUN_TESTS()
