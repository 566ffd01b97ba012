// The words that ranks of a machine share, in every order in which they may be seen (seen_orders.h): how chunks flow in
// each of the ways, and how the first rank fails an operation that others may be about to begin.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/keys.h"
#include "protocol/local/flow.h"
#include "protocol/local/local_group.h"
#include "tests/check.h"

namespace {

using namespace shoal;
using namespace shoal::local;
using seen_orders::Choices;

// Whose turn it is: a rank goes on until it finds nothing to do, but for so many interruptions. A rank that found
// nothing looks again once another has done something.
class Turns {
 public:
  Turns(std::uint32_t ranks, std::uint32_t interruptions, Choices& choices)
      : choices_(choices), idle_(ranks), interruptions_(interruptions) {}

  // None: nobody has anything to do.
  std::optional<std::uint32_t> next() {
    std::vector<std::uint32_t> others;
    for (std::uint32_t rank = 0; rank < idle_.size(); ++rank) {
      if (!idle_[rank] && rank != turn_) {
        others.push_back(rank);
      }
    }
    const bool goes_on = turn_ && !idle_[*turn_];
    if (goes_on && interruptions_ == 0) {
      return turn_;
    }
    const std::size_t ways = others.size() + (goes_on ? 1 : 0);
    if (ways == 0) {
      return std::nullopt;
    }
    const std::uint32_t way = choices_.pick(static_cast<std::uint32_t>(ways));
    if (goes_on && way == others.size()) {
      return turn_;
    }
    interruptions_ -= goes_on ? 1 : 0;
    turn_ = others[way];
    return turn_;
  }
  void note(bool did_something, bool would_find_more) {
    if (did_something) {
      std::fill(idle_.begin(), idle_.end(), false);
    } else {
      idle_[*turn_] = !would_find_more;
    }
  }

 private:
  Choices& choices_;
  std::vector<bool> idle_;
  std::uint32_t interruptions_;
  std::optional<std::uint32_t> turn_;
};

// Work that is watched.
class WatchedHands : public Bells, public Hands {
 public:
  void ring(std::uint32_t, bool) override {}
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
std::string run_flows(const FlowCase& one, Choices& choices, std::uint32_t stale, bool publishes) {
  local::Shape shape;
  shape.ranks = one.ranks;
  shape.mailbox = 64;
  shape.slots = one.slots;
  shape.slot = 64 * one.ranks;
  const sim::HeapGroup memory(shape);
  seen_orders::Memory seen(one.ranks, choices, stale, publishes);
  seen_orders::current = &seen;
  WatchedHands hands;
  std::vector<Flow> flows;
  flows.reserve(one.ranks);
  std::vector<std::vector<std::vector<Line>>> arrays(one.twice ? 2 : 1);
  for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
    flows.emplace_back(memory, rank, hands, hands);
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
    Turns turns(one.ranks, one.interruptions, choices);
    while (const std::optional<std::uint32_t> rank = turns.next()) {
      seen.act_as(*rank);
      const bool did_something = flows[*rank].step();
      turns.note(did_something, seen.took_stale());
    }
    // Its program reads the result.
    for (std::uint32_t rank = 0; rank < one.ranks; ++rank) {
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
      if (flows[rank].take_finished() != operation) {
        return "rank " + std::to_string(rank) + " does not come to an end";
      }
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
    {.name = "chain", .ranks = 2, .slots = 1, .lines = 16, .interruptions = 2},
    {.name = "straight", .ranks = 2, .slots = 1, .lines = 4, .straight = true},
    {.name = "shares, then a chain", .ranks = 2, .slots = 1, .lines = 16, .twice = true, .interruptions = 1},
};

TEST(in_whatever_order_counters_are_seen_chunks_flow_and_no_byte_is_touched_too_early) {
  for (const FlowCase& one : flow_cases) {
    std::uint64_t runs = 0;
    const std::string wrong = run_through([&](Choices& choices) { return run_flows(one, choices, 1, true); }, runs);
    std::printf("  %s: %llu orders%s%s\n", one.name, static_cast<unsigned long long>(runs), wrong.empty() ? "" : ": ",
                wrong.c_str());
    CHECK(wrong.empty());
  }
}

TEST(counters_that_did_not_publish_would_be_found) {
  for (const FlowCase& one : flow_cases) {
    std::uint64_t runs = 0;
    CHECK(!run_through([&](Choices& choices) { return run_flows(one, choices, 0, false); }, runs).empty());
  }
}

// --- The first rank fails what others may be about to begin ---

class GroupWorld final : public local::World {
 public:
  void ring(std::uint32_t, bool) override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override {
    reduce(destination, sources, count, dtype, op, divisor);
  }
  void sending(std::uint64_t) override {}
  void finish(std::uint64_t, Status status) override { ended = std::move(status); }
  std::byte* allocate_output(std::uint64_t, const std::vector<std::uint64_t>&) override { return nullptr; }
  void warn(std::string) override {}
  bool holds(const std::byte*, std::uint64_t) const override { return false; }
  void reach(std::uint32_t, std::size_t) override {}
  void detach(const std::byte*, std::uint64_t) override {}
  void hand_over(Submission) override {}
  void send_up(Submission, const std::optional<Chunks>&) override {}
  void contributed(std::uint64_t, Range) override {}
  void open_as_failed(Submission) override {}
  void fail_job(const Status&) override {}
  void empty() override {}

  std::optional<Status> ended;
};

// Three ranks; the time is out on the first when the third calls. All end alike.
std::string run_failure(Choices& choices, bool decides, std::uint32_t interruptions) {
  constexpr std::uint32_t ranks = 3;
  local::Shape shape;
  shape.ranks = ranks;
  shape.mailbox = 4096;
  shape.slot = 4096;
  shape.slots = 1;
  const sim::HeapGroup memory(shape);
  seen_orders::Memory seen(ranks, choices, 2, true, decides);
  seen_orders::current = &seen;
  JobConfig config;
  config.hosts.assign(ranks, "here");
  config.eager = config.small = 1024;
  const std::vector<std::uint32_t> everyone{0, 1, 2};
  std::vector<GroupWorld> worlds(ranks);
  std::vector<std::unique_ptr<LocalGroup>> groups;
  std::vector<std::int32_t> values(ranks, 1);
  const auto drain = [&](std::uint32_t rank) {
    seen.act_as(rank);
    while (groups[rank]->step()) {
    }
  };
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    seen.act_as(rank);
    groups.push_back(std::make_unique<LocalGroup>(memory, config, everyone, rank, false, worlds[rank]));
    groups[rank]->add_group(0, world_group_id(ranks), everyone, std::nullopt);
  }
  const auto call = [&](std::uint32_t rank) {
    Submission submission;
    submission.handle = rank + 1;
    submission.collective = Collective::all_reduce;
    submission.name = "weight";
    submission.op = Operator::sum;
    submission.dtype = DType::int32;
    submission.shape = {1};
    submission.input = submission.output = reinterpret_cast<std::byte*>(&values[rank]);
    submission.input_bytes = submission.output_bytes = 4;
    submission.timeout = second;
    seen.act_as(rank);
    groups[rank]->on_time(0);
    groups[rank]->call(std::move(submission));
  };
  call(0);
  call(1);
  drain(0);
  drain(1);
  drain(0);
  // From here on a step each, in any order. The clock of the others stands still.
  call(2);
  groups[0]->on_time(2 * second);
  Turns turns(ranks, interruptions, choices);
  while (const std::optional<std::uint32_t> rank = turns.next()) {
    seen.act_as(*rank);
    const bool did_something = groups[*rank]->step();
    turns.note(did_something, seen.took_stale());
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (!worlds[rank].ended) {
      return "rank " + std::to_string(rank) + " waits for ever";
    }
    if (worlds[rank].ended->ok() != worlds[0].ended->ok()) {
      return "rank 0 ends with '" + worlds[0].ended->message + "', rank " + std::to_string(rank) + " with '" +
             worlds[rank].ended->message + "'";
    }
  }
  return "";
}

TEST(all_ranks_agree_whether_an_operation_whose_time_is_out_has_failed_in_whatever_order_they_look) {
  std::uint64_t runs = 0;
  const std::string wrong = run_through([](Choices& choices) { return run_failure(choices, true, 3); }, runs);
  std::printf("  %llu orders%s%s\n", static_cast<unsigned long long>(runs), wrong.empty() ? "" : ": ", wrong.c_str());
  CHECK(wrong.empty());
}

TEST(positions_that_ranks_saw_change_in_different_orders_would_be_found) {
  std::uint64_t runs = 0;
  const std::string wrong = run_through([](Choices& choices) { return run_failure(choices, false, 1); }, runs);
  std::printf("  after %llu orders: %s\n", static_cast<unsigned long long>(runs), wrong.c_str());
  CHECK(!wrong.empty());
}

}  // namespace

RUN_TESTS()
