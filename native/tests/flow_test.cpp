// How large operations flow through a node's memory, in schedules drawn from a seed: all ranks in one thread, each of
// which sleeps when it has nothing to do and goes on only if its bell has rung.

#include "protocol/local/flow.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/local/chain.h"
#include "reduce/reduce.h"
#include "tests/check.h"

namespace {

using namespace shoal;
using namespace shoal::local;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

std::uint64_t draw(Random& random, std::uint64_t below) { return random() % below; }

Shape small_shape(std::uint32_t ranks) {
  Shape shape;
  shape.ranks = ranks;
  shape.slots = 2;
  shape.slot = 1024;
  return shape;
}

// One operation on all ranks, and what is to come out.
struct Operation {
  std::vector<Transfer> transfers;  // by rank
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  std::vector<Bytes> expected;
};

// Numbers whose sums depend on the order.
Bytes numbers(Random& random, DType dtype, std::size_t count) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const double value =
        draw(random, 4) == 0 ? 1e8 * (draw(random, 2) == 0 ? -1 : 1) : static_cast<double>(draw(random, 100));
    std::byte* const place = bytes.data() + i * size_of(dtype);
    if (dtype == DType::float32) {
      const auto number = static_cast<float>(value);
      std::memcpy(place, &number, sizeof number);
    } else if (dtype == DType::float64) {
      const double number = value * 1e10 + 0.1;
      std::memcpy(place, &number, sizeof number);
    } else if (dtype == DType::int32) {
      const auto number = static_cast<std::int32_t>(value);
      std::memcpy(place, &number, sizeof number);
    } else {  // bfloat16: the upper half of a float32
      const auto number = static_cast<float>(value);
      std::memcpy(place, reinterpret_cast<const std::byte*>(&number) + 2, 2);
    }
  }
  return bytes;
}

std::unique_ptr<Operation> all_reduce(Random& random, std::uint32_t ranks, const std::vector<std::uint32_t>& order) {
  constexpr DType dtypes[] = {DType::float32, DType::float32, DType::float64, DType::int32, DType::bfloat16};
  constexpr Operator operators[] = {Operator::sum, Operator::mean, Operator::min};
  auto made = std::make_unique<Operation>();
  const DType dtype = dtypes[draw(random, std::size(dtypes))];
  const Operator op = dtype == DType::int32 ? Operator::sum : operators[draw(random, std::size(operators))];
  const std::size_t count = 1 + (draw(random, 2) == 0 ? draw(random, 500) : draw(random, 20'000));
  const bool straight = draw(random, 6) == 0;
  const bool up = draw(random, 4) == 0;
  const std::uint64_t queued = draw(random, 2) * 1'000'000;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    made->inputs.push_back(numbers(random, dtype, count));
  }
  made->outputs = made->inputs;
  std::vector<const std::byte*> sources;
  for (const std::uint32_t rank : order) {
    sources.push_back(made->inputs[rank].data());
  }
  Bytes sum(count * size_of(dtype));
  reduce(sum.data(), sources, count, dtype, op, ranks);
  static constexpr std::uint32_t weights[] = {3, 2};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Transfer transfer;
    transfer.output = made->outputs[rank].data();
    transfer.input = transfer.output;
    transfer.bytes = sum.size();
    transfer.dtype = dtype;
    transfer.op = op;
    transfer.order = order;
    transfer.divisor = ranks;
    transfer.up = up;
    transfer.queued = queued;
    if (up) {
      transfer.weights = weights;
    }
    for (const std::uint32_t other : order) {
      if (straight) {
        transfer.arrays.inputs.push_back(made->outputs[other].data());
      }
    }
    for (std::uint32_t other = 0; other < (up ? 1 : ranks) && straight; ++other) {
      transfer.arrays.outputs.push_back(made->outputs[other].data());
    }
    made->transfers.push_back(std::move(transfer));
    made->expected.push_back(up && rank > 0 ? made->inputs[rank] : sum);
  }
  return made;
}

std::unique_ptr<Operation> all_gather(Random& random, std::uint32_t ranks) {
  auto made = std::make_unique<Operation>();
  const std::size_t bytes = 1 + draw(random, 5000);
  Bytes all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Bytes input(bytes);
    std::generate(input.begin(), input.end(), [&] { return static_cast<std::byte>(random()); });
    all.insert(all.end(), input.begin(), input.end());
    made->inputs.push_back(std::move(input));
    made->outputs.emplace_back(bytes * ranks);
  }
  made->expected.assign(ranks, all);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Transfer transfer;
    transfer.input = made->inputs[rank].data();
    transfer.output = made->outputs[rank].data();
    transfer.bytes = bytes;
    Blocks& blocks = transfer.blocks.emplace();
    blocks.outgoing.assign(ranks, {0, bytes});
    for (std::uint32_t from = 0; from < ranks; ++from) {
      blocks.incoming.push_back({from * bytes, (from + 1) * bytes});
    }
    blocks.origins.assign(ranks, 0);
    blocks.largest = bytes;
    blocks.same = true;
    made->transfers.push_back(std::move(transfer));
  }
  return made;
}

void run_schedule(std::uint64_t seed) {
  Random random(seed);
  const auto ranks = static_cast<std::uint32_t>(2 + draw(random, 4));
  const sim::HeapGroup memory(small_shape(ranks));
  sim::PromptHands hands(memory);
  std::vector<Flow> flows;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    flows.emplace_back(memory, rank, hands, hands);
  }
  std::vector<std::uint32_t> order(ranks);
  std::vector<std::unique_ptr<Operation>> operations(1 + draw(random, 6));
  for (std::size_t i = 0; i < operations.size(); ++i) {
    std::generate(order.begin(), order.end(), [n = 0U]() mutable { return n++; });
    std::shuffle(order.begin(), order.end(), random);
    operations[i] = draw(random, 5) == 0 ? all_gather(random, ranks) : all_reduce(random, ranks, order);
    for (Transfer& transfer : operations[i]->transfers) {
      transfer.handle = i;
    }
  }
  std::vector<std::size_t> admitted(ranks);
  std::vector<std::size_t> finished(ranks);
  std::vector<std::optional<std::uint32_t>> asleep(ranks);  // what its bell said before
  for (;;) {
    std::vector<std::uint32_t> awake;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      // What it has not called yet it calls at any time.
      if (admitted[rank] < operations.size() || asleep[rank] != memory.words(rank).bell.load()) {
        awake.push_back(rank);
      }
    }
    if (awake.empty()) {
      break;
    }
    const std::uint32_t rank = awake[draw(random, awake.size())];
    Flow& flow = flows[rank];
    const std::uint32_t bell = memory.words(rank).bell.load();
    if (admitted[rank] < operations.size() && draw(random, 10) == 0) {
      const std::size_t next = admitted[rank];
      flow.admit(operations[next]->transfers[rank]);
      ++admitted[rank];
      asleep[rank].reset();
    } else if (draw(random, 3) != 0) {  // a burst, as of a rank that has the core for itself
      for (std::uint64_t left = 1 + draw(random, 12); left > 0 && !asleep[rank]; --left) {
        if (!flow.step()) {
          asleep[rank] = bell;
        }
      }
    } else if (asleep[rank] = std::nullopt; !flow.step()) {
      asleep[rank] = bell;
    }
    flow.check_invariants();
    while (const std::optional<std::uint64_t> handle = flow.take_finished()) {
      CHECK(*handle == finished[rank]);
      ++finished[rank];
    }
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    CHECK(finished[rank] == operations.size());  // else nobody is ever woken again
  }
  for (const auto& operation : operations) {
    CHECK(operation->outputs == operation->expected);
  }
}

TEST(every_schedule_ends_and_gives_the_sums_of_the_order_asked_for) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    run_schedule(seed);
  }
}

// A sum in place, of contributions in this order.
Transfer sum_in_place(std::vector<float>& array, std::vector<std::uint32_t> order) {
  Transfer transfer;
  transfer.output = reinterpret_cast<std::byte*>(array.data());
  transfer.input = transfer.output;
  transfer.bytes = array.size() * sizeof(float);
  transfer.dtype = DType::float32;
  transfer.op = Operator::sum;
  transfer.order = std::move(order);
  return transfer;
}

TEST(what_follows_on_much_in_slots_is_added_to_the_chain) {
  const sim::HeapGroup memory(small_shape(2));
  sim::PromptHands hands(memory);
  Flow flow(memory, 0, hands, hands);
  std::vector<float> large(5000);
  std::vector<float> little(100);
  Transfer first = sum_in_place(large, {0, 1});
  Transfer next = sum_in_place(little, {0, 1});
  CHECK(chain::suits(first, memory.shape()) && !chain::suits(next, memory.shape()));
  flow.admit(first);
  CHECK_EQ(flow.queued(), first.bytes);
  next.queued = flow.queued();
  CHECK(chain::suits(next, memory.shape()));
  flow.admit(next);
  CHECK_EQ(flow.queued(), first.bytes + next.bytes);
  next.dtype = DType::bfloat16;
  CHECK(!chain::suits(next, memory.shape()));
}

// Rank 1 has reduced its share, and then fails everything: its program goes on with its array.
TEST(a_share_of_an_array_that_was_withdrawn_meanwhile_does_not_count) {
  for (const bool withdrawn : {false, true}) {
    const sim::HeapGroup memory(small_shape(2));
    sim::PromptHands hands(memory);
    std::vector<Flow> flows;
    std::vector<std::vector<float>> arrays(2, std::vector<float>(100, 1));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Transfer transfer = sum_in_place(arrays[rank], {0, 1});
      for (std::vector<float>& array : arrays) {
        transfer.arrays.inputs.push_back(reinterpret_cast<std::byte*>(array.data()));
        transfer.arrays.outputs.push_back(reinterpret_cast<std::byte*>(array.data()));
      }
      flows.emplace_back(memory, rank, hands, hands).admit(std::move(transfer));
    }
    while (flows[1].step()) {
    }
    memory.words(1).withdrawn.store(withdrawn ? 1 : 0);
    while (flows[0].step()) {
    }
    flows[0].check_invariants();
    CHECK(flows[0].take_finished().has_value() == !withdrawn);
    CHECK(!flows[0].ready());
    CHECK(memory.words(0).reduced.load() == (withdrawn ? 0 : 1));
  }
}

// Three ranks and one large sum, of which rank 1 does nothing from some moment on.
TEST(of_a_chain_the_one_that_others_wait_for_is_named) {
  const sim::HeapGroup memory(small_shape(3));
  sim::PromptHands hands(memory);
  std::vector<Flow> flows;
  std::vector<std::vector<float>> arrays(3, std::vector<float>(50'000, 1));
  std::uint64_t chunks = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    chunks = flows.emplace_back(memory, rank, hands, hands).admit(sum_in_place(arrays[rank], {2, 1, 0})).count();
  }
  const auto run_all_but_1 = [&flows] {
    while (flows[0].step() || flows[2].step()) {
    }
  };
  const auto named = [&flows](std::vector<std::uint32_t> ranks) {
    return std::all_of(flows.begin(), flows.end(), [&](const Flow& flow) { return flow.late() == ranks; });
  };
  CHECK(named({2}));  // has slots, and has not begun
  run_all_but_1();
  CHECK(named({1}));  // has added nothing
  CHECK(flows[1].step());
  run_all_but_1();
  CHECK(named({1}));
  while (flows[1].step()) {
  }
  run_all_but_1();
  CHECK(named({1}));
  while (memory.words(1).contributed.load() < chunks) {
    CHECK(flows[1].step());
    run_all_but_1();
  }
  CHECK(named({1}));  // has added to all, and not taken all out
  while (flows[0].step() || flows[1].step() || flows[2].step()) {
  }
  CHECK(arrays[1].back() == 3);
}

}  // namespace

RUN_TESTS()
