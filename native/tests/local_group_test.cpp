// The ranks of a machine when there is no room in a mailbox: what depends on it that others can read.
#include "protocol/local/local_group.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/keys.h"
#include "protocol/local/mailbox.h"
#include "tests/check.h"
#include "tests/local_worlds.h"

namespace {

using namespace shoal;
using namespace shoal::local;

struct GroupWorld final : IdleLocalWorld {
  void ring(std::uint32_t place, bool always) override { rung.emplace_back(place, always); }
  void finish(std::uint64_t handle, Status status) override { ended.emplace(handle, std::move(status)); }

  std::map<std::uint64_t, Status> ended;  // by handle
  std::vector<std::pair<std::uint32_t, bool>> rung;
};

Shape small_mailboxes(std::uint32_t ranks) {
  Shape shape;
  shape.ranks = ranks;
  shape.mailbox = 4096;
  shape.slot = 4096;
  shape.slots = 1;
  return shape;
}

constexpr std::size_t most_numbers = 128;

// Two ranks that each take all steps that there are before the other has its turn.
class Pair {
 public:
  Pair() : memory_(small_mailboxes(2)) {
    config_.hosts.assign(2, "here");
    config_.eager = 64 * 1024;
    config_.small = 1024;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      groups_.push_back(
          std::make_unique<LocalGroup>(memory_, config_, std::vector<std::uint32_t>{0, 1}, rank, false, worlds_[rank]));
      groups_[rank]->add_group(0, world_group_id(2), {0, 1}, std::nullopt);
    }
  }

  LocalGroup& group(std::uint32_t rank) { return *groups_[rank]; }
  // How the rank's operation with this handle has ended; null: it has not.
  const Status* end_of(std::uint32_t rank, std::uint64_t handle) const {
    const auto found = worlds_[rank].ended.find(handle);
    return found == worlds_[rank].ended.end() ? nullptr : &found->second;
  }

  void call(std::uint32_t rank, std::uint64_t handle, const std::string& name, Time timeout, std::size_t count = 64,
            const std::string& failure = "") {
    Submission submission;
    submission.handle = handle;
    submission.collective = Collective::all_reduce;
    submission.name = name;
    submission.op = Operator::sum;
    submission.dtype = DType::float32;
    submission.shape = {static_cast<std::int64_t>(count)};
    submission.input = submission.output = reinterpret_cast<std::byte*>(array_[rank]);
    submission.input_bytes = submission.output_bytes = count * sizeof(float);
    submission.timeout = timeout;
    submission.failure = failure;
    groups_[rank]->call(std::move(submission));
  }
  // Whether not even the shortest record fits into the rank's mailbox, out of which nothing was read.
  bool has_full_mailbox(std::uint32_t rank) const {
    return memory_.words(rank).written.load() == memory_.shape().mailbox;
  }
  // Whether it did anything.
  bool run(std::uint32_t rank) {
    bool any = false;
    while (groups_[rank]->step()) {
      groups_[rank]->check_invariants();
      any = true;
    }
    return any;
  }
  void run_both() {
    while (run(1) || run(0)) {
    }
  }

 private:
  const sim::HeapGroup memory_;
  JobConfig config_;
  GroupWorld worlds_[2];
  std::vector<std::unique_ptr<LocalGroup>> groups_;
  float array_[2][most_numbers] = {};
};

constexpr std::uint64_t many = 60;

std::string name_of(std::uint64_t number) { return "layer" + std::to_string(number); }

}  // namespace

TEST(a_reader_wakes_a_writer_that_waits_for_room) {
  const sim::HeapGroup memory(small_mailboxes(2));
  GroupWorld world;
  MailboxWriter writer(memory, 0, world);
  MailboxReader reader(memory, 1, 0, world);
  const std::vector<std::byte> body(1000);
  const Record record{RecordKind::open, {}, body, {}};
  CHECK(writer.write(record));
  CHECK(reader.next().has_value());
  reader.done();
  CHECK(world.rung.empty());
  while (writer.write(record)) {
  }
  world.rung.clear();
  CHECK(reader.next().has_value());
  reader.done();
  CHECK_EQ(world.rung.size(), 1U);
  CHECK(world.rung.front().first == 0 && world.rung.front().second);
}

TEST(a_rank_has_said_all_that_it_has_called_before_it_says_that_it_has_left) {
  constexpr std::uint64_t calls = 10;
  const std::string long_reason(1000, '?');  // there is room for a few of them
  Pair pair;
  for (std::uint64_t number = 1; number <= calls; ++number) {
    pair.call(1, number, name_of(number), 600 * second, 1, long_reason);
  }
  pair.group(1).leave();
  pair.run(1);
  for (std::uint64_t number = 1; number <= calls; ++number) {
    pair.call(0, number, name_of(number), 600 * second, 1);
  }
  pair.run_both();
  for (std::uint64_t number = 1; number <= calls; ++number) {
    const Status* const end = pair.end_of(0, number);
    CHECK(end != nullptr && end->code == Code::failed_on_rank);
  }
}

TEST(a_failure_is_not_decided_before_it_can_be_read_that_it_is_pending) {
  bool was_full = false;
  for (std::size_t count = 1; count <= most_numbers; ++count) {
    Pair pair;
    pair.call(0, 1, "weight", second);
    pair.call(0, 2, "bias", 600 * second, count);
    for (std::uint64_t number = 3; number <= many; ++number) {
      pair.call(0, number, name_of(number), 600 * second);
    }
    pair.run(0);  // until there is no room
    const bool is_full = pair.has_full_mailbox(0);
    was_full = was_full || is_full;
    pair.group(0).on_time(2 * second);
    pair.run(0);
    CHECK((pair.end_of(0, 1) == nullptr) == is_full);
    pair.call(1, 1, "weight", 600 * second);
    pair.run_both();
    CHECK(pair.end_of(0, 1) != nullptr && pair.end_of(1, 1) != nullptr);
    CHECK(pair.end_of(0, 1)->ok() == pair.end_of(1, 1)->ok());
  }
  CHECK(was_full);
}

RUN_TESTS()
