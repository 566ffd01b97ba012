// A rank among ranks of its machine of which one says in the memory what no rank says: each test plays that one. The
// group ends with an error that says so, and uses no memory that is not its own.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/agreement.h"
#include "protocol/keys.h"
#include "protocol/local/local_group.h"
#include "tests/check.h"
#include "tests/local_worlds.h"

namespace {

using namespace shoal;
using namespace shoal::local;

constexpr std::uint32_t ranks = 2;

struct World final : IdleLocalWorld {
  void finish(std::uint64_t handle, Status status) override {
    CHECK(finished.emplace(handle, std::move(status)).second);
  }
  std::byte* allocate_output(std::uint64_t, const std::vector<std::uint64_t>& block_bytes) override {
    asked_for = block_bytes;
    return nullptr;
  }
  void empty() override { is_empty = true; }

  std::map<std::uint64_t, Status> finished;
  std::vector<std::uint64_t> asked_for;
  bool is_empty = false;
};

JobConfig job_config() {
  JobConfig config;
  config.hosts = {"a", "a", "b"};
  config.leaders = {0, 0, 2};
  config.weights = {1};
  config.server_names = {"s"};
  config.server_ranks = {0};
  config.segment = config.credit = config.eager = 256;
  config.small = 128;
  return config;
}

Shape small_shape() {
  Shape shape;
  shape.ranks = ranks;
  shape.mailbox = 8 * 1024;
  shape.slot = 128;
  shape.slots = 2;
  return shape;
}

// One rank, and a mailbox for the other one, which is there and says what the test says. `has_other_nodes`: rank 2 of
// the group is on another node.
class Pair {
 public:
  explicit Pair(std::uint32_t own, bool has_other_nodes = false)
      : other_(1 - own),
        bells_(memory_),
        writer_(memory_, 1 - own, bells_),
        group_(memory_, config_, {0, 1}, own, has_other_nodes, world_) {
    const std::vector<std::uint32_t> members =
        has_other_nodes ? std::vector<std::uint32_t>{0, 1, 2} : std::vector<std::uint32_t>{0, 1};
    group_.add_group(0, world_group_id(ranks), members,
                     has_other_nodes ? std::optional(Internode{1, 3, ranks, {1}, 0}) : std::nullopt);
    memory_.words(other_).here.store(1);
  }

  // What the rank and the other one call, if both call the same.
  static Submission call(Collective collective, std::vector<std::byte>& array) {
    Submission s;
    s.handle = 7;
    s.collective = collective;
    s.name = std::string("x");  // assigning the literal makes gcc 12 warn of what cannot be
    s.dtype = DType::uint8;
    s.shape = {static_cast<std::int64_t>(array.size())};
    s.input = array.data();
    s.input_bytes = array.size();
    s.timeout = second;
    if (collective == Collective::all_reduce) {
      s.op = Operator::sum;
      s.output = array.data();
      s.output_bytes = array.size();
    } else if (collective == Collective::broadcast) {
      s.root = 2;
      s.output = array.data();
      s.output_bytes = array.size();
    } else if (collective == Collective::all_to_all) {
      s.splits = {0, static_cast<std::int64_t>(array.size())};
    }
    return s;
  }
  static wire::Opening opening_of(const Submission& s) {
    wire::Opening opening;
    opening.name = s.name;
    opening.group = world_group_id(ranks);
    opening.key = key();
    take_arguments(opening, s);
    opening.bytes = s.input_bytes;
    return opening;
  }
  static Hash128 key() { return operation_key(world_group_id(ranks), "x", 0); }

  void says(RecordKind kind, const wire::Bytes& body, const wire::Bytes& data = {}) {
    CHECK(writer_.write({kind, key(), body, data}));
  }
  // As the driver takes steps. What was thrown; empty: nothing.
  std::string take_steps(Time now = 0) {
    group_.on_time(now);
    try {
      while (group_.step() || group_.work()) {
        group_.check_invariants();
      }
    } catch (const std::runtime_error& error) {
      group_.give_up(error);
      return error.what();
    }
    return "";
  }
  bool is_damaged(const std::string& what) {
    const std::string said = take_steps();
    CHECK_EQ(said.find(what) == std::string::npos ? said : what, what);
    return !group_.broken().ok() && group_.open_operations() == 0;
  }

  LocalGroup& group() { return group_; }
  World& world() { return world_; }
  RankWords& words_of_other() { return memory_.words(other_); }

 private:
  const JobConfig config_ = job_config();
  const std::uint32_t other_;
  const sim::HeapGroup memory_{small_shape()};
  World world_;
  sim::PromptHands bells_;
  MailboxWriter writer_;
  LocalGroup group_;
};

wire::Bytes failure() { return wire::encode(wire::Failure{Status::error(Code::timeout, "late")}); }

}  // namespace

TEST(a_contribution_is_as_long_as_its_call_says) {
  Pair pair(0);
  std::vector<std::byte> array(64);
  const Submission call = Pair::call(Collective::all_reduce, array);
  pair.group().call(call);
  pair.says(RecordKind::open_with_data, wire::encode(Pair::opening_of(call)), wire::Bytes(8));
  CHECK(pair.is_damaged("a contribution of another size"));
  CHECK(!pair.world().finished.at(7).ok());
}

TEST(a_contribution_that_came_before_the_own_call_is_as_long_as_it_says) {
  Pair pair(0);
  std::vector<std::byte> array(64);
  const Submission call = Pair::call(Collective::all_reduce, array);
  pair.says(RecordKind::open_with_data, wire::encode(Pair::opening_of(call)), wire::Bytes(8));
  CHECK_EQ(pair.take_steps(), "");
  pair.group().call(call);
  CHECK(pair.is_damaged("a contribution of another size"));
}

TEST(what_is_left_to_the_worker_has_no_contribution_here) {
  Pair pair(0, true);
  std::vector<std::byte> array(64);
  const Submission call = Pair::call(Collective::broadcast, array);
  pair.group().call(call);
  pair.says(RecordKind::open_with_data, wire::encode(Pair::opening_of(call)), wire::Bytes(64));
  CHECK(pair.is_damaged("a contribution of another size"));
}

TEST(blocks_of_less_than_nothing_are_refused) {
  Pair pair(0);
  std::vector<std::byte> array(64);
  Submission call = Pair::call(Collective::all_to_all, array);
  pair.group().call(call);
  wire::Opening opening = Pair::opening_of(call);
  opening.splits = {64, -32};
  pair.says(RecordKind::open_with_data, wire::encode(opening), wire::Bytes(64));
  CHECK(pair.is_damaged("blocks that are larger than their array"));
}

TEST(more_than_can_be_gathered_is_refused_before_memory_is_asked_for) {
  Pair pair(0);
  std::vector<std::byte> array(1024);
  const Submission call = Pair::call(Collective::all_gather, array);
  pair.group().call(call);
  wire::Opening opening = Pair::opening_of(call);
  opening.bytes = ~std::uint64_t{0} - 512;
  pair.says(RecordKind::open, wire::encode(opening));
  CHECK(pair.is_damaged("more bytes than there can be"));
  CHECK(pair.world().asked_for.empty());
}

TEST(a_call_that_cannot_be_read_is_refused_when_it_is_heard) {
  Pair pair(0);
  pair.says(RecordKind::open, wire::Bytes(64));
  CHECK(pair.is_damaged("too short"));
}

TEST(a_call_under_the_key_of_another_is_refused) {
  Pair pair(0);
  std::vector<std::byte> array(64);
  wire::Opening opening = Pair::opening_of(Pair::call(Collective::all_reduce, array));
  opening.key = world_group_id(3);
  pair.says(RecordKind::open, wire::encode(opening));
  CHECK(pair.is_damaged("a call that cannot be one"));
}

TEST(a_place_is_as_long_as_one) {
  Pair pair(0);
  std::vector<std::byte> array(64);
  const Submission call = Pair::call(Collective::all_reduce, array);
  pair.says(RecordKind::open_in_region, wire::encode(Pair::opening_of(call)), wire::Bytes(8));
  CHECK(pair.is_damaged("a call that cannot be one"));
}

TEST(only_the_first_rank_says_in_which_order_operations_flow_and_how_they_end) {
  for (const RecordKind kind : {RecordKind::admit, RecordKind::part, RecordKind::done, RecordKind::failed,
                                RecordKind::fail_pending, RecordKind::go_on}) {
    Pair pair(0);
    pair.says(kind, failure());
    CHECK(pair.is_damaged("rank 1 (a) says what it has no say in"));
  }
}

TEST(where_there_is_one_node_nothing_comes_from_the_network) {
  for (const RecordKind kind : {RecordKind::part, RecordKind::done, RecordKind::failed}) {
    Pair pair(1);
    std::vector<std::byte> array(64);
    pair.group().call(Pair::call(Collective::all_reduce, array));
    pair.says(kind, failure(), {std::byte{1}});
    CHECK(pair.is_damaged("rank 0 (a) says what it has no say in"));
  }
}

TEST(an_operation_that_has_ended_does_not_flow) {
  Pair pair(1);
  std::vector<std::byte> array(1024);
  Submission call = Pair::call(Collective::all_reduce, array);
  call.failure = "it has failed before it began";
  pair.group().call(call);
  CHECK_EQ(pair.take_steps(), "");
  pair.says(RecordKind::admit, wire::Bytes(sizeof(std::uint64_t)));
  CHECK(pair.is_damaged("an operation flows that has ended"));
}

TEST(an_admission_says_how_much_flows_before) {
  Pair pair(1);
  pair.says(RecordKind::admit, wire::Bytes(sizeof(std::uint32_t)));
  CHECK(pair.is_damaged("a record of the wrong size"));
}

// What was read once would be read again, round and round.
TEST(a_writer_neither_goes_back_nor_writes_more_than_a_mailbox_holds) {
  for (const std::uint64_t ahead : {~std::uint64_t{0} - 63, std::uint64_t{1} << 40U}) {
    Pair pair(0);
    for (std::size_t bytes = 0; bytes < small_shape().mailbox; bytes += 64) {
      pair.says(RecordKind::leave, {});
    }
    CHECK_EQ(pair.take_steps(), "");
    Counter& written = pair.words_of_other().written;
    written.store(written.load() + ahead);
    CHECK(pair.is_damaged("the node's shared memory is damaged"));
    pair.group().leave();
    CHECK_EQ(pair.take_steps(), "");
    CHECK(pair.world().is_empty);
  }
}

// No damage: the leader has failed it for a reason of its own, and says so before it can say what it has called.
TEST(that_a_pending_failure_goes_on_forgets_no_call_that_is_not_written_yet) {
  Pair pair(1);
  pair.says(RecordKind::fail_pending, {});
  CHECK_EQ(pair.take_steps(), "");
  std::vector<std::byte> array(64);
  const Submission call = Pair::call(Collective::all_reduce, array);
  pair.group().call(call);
  pair.says(RecordKind::go_on, {});
  CHECK_EQ(pair.take_steps(), "");
  wire::Opening opening = Pair::opening_of(call);
  opening.failed = true;
  opening.text = "it had no memory";
  pair.says(RecordKind::open, wire::encode(opening));
  CHECK_EQ(pair.take_steps(), "");
  CHECK(pair.world().finished.at(7).code == Code::failed_on_rank);
}

// No damage: a rank that is stopped, for whose reading what the leader has to say waits.
TEST(operations_end_although_a_rank_reads_nothing) {
  constexpr std::uint64_t calls = 20;  // of which the mailbox has the failures of some
  Pair pair(0);
  std::vector<std::byte> array(64);
  for (std::uint64_t handle = 1; handle <= calls; ++handle) {
    Submission call = Pair::call(Collective::all_reduce, array);
    call.handle = handle;
    pair.group().call(std::move(call));
  }
  CHECK_EQ(pair.take_steps(), "");
  CHECK_EQ(pair.take_steps(second), "");
  CHECK(!pair.world().finished.empty() && pair.world().finished.size() < calls);
  CHECK(pair.group().deadline() < never);
  CHECK_EQ(pair.take_steps(pair.group().deadline()), "");
  CHECK_EQ(pair.world().finished.size(), calls);
  CHECK(pair.group().broken().code == Code::timeout);
}

RUN_TESTS()
