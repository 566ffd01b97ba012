// When the ranks of a machine among several can leave.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/keys.h"
#include "protocol/local/local_group.h"
#include "tests/check.h"
#include "tests/local_worlds.h"

namespace {

using namespace shoal;
using namespace shoal::local;

constexpr std::uint32_t ranks = 2;
constexpr std::uint32_t in_job = 3;

struct World final : IdleLocalWorld {
  void open_as_failed(Submission submission) override { told.push_back(submission.name); }
  void empty() override { is_empty = true; }
  void ring(std::uint32_t place, bool always) override { wakes_leader = wakes_leader || (place == 0 && always); }

  std::vector<std::string> told;  // to the other nodes
  bool is_empty = false;
  bool wakes_leader = false;  // though it has nothing open
};

// Two ranks of a machine, and one of another.
class Node {
 public:
  Node() {
    config_.hosts = {"a", "a", "b"};
    config_.leaders = {0, 0, 2};
    config_.weights = {1};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      groups_.push_back(
          std::make_unique<LocalGroup>(memory_, config_, std::vector<std::uint32_t>{0, 1}, rank, true, worlds[rank]));
      groups_[rank]->add_group(0, world_group_id(in_job), {0, 1, 2}, Internode{1, in_job, ranks, {1}, 0});
    }
  }

  // It has failed on this rank before it began.
  void fails(std::uint32_t rank, const std::string& name) {
    Submission submission;
    submission.handle = ++last_;
    submission.collective = Collective::all_reduce;
    submission.name = name;
    submission.failure = "no such array";
    submission.timeout = second;
    groups_[rank]->call(std::move(submission));
  }
  void calls_barrier(std::uint32_t rank, const std::string& name) {
    Submission submission;
    submission.handle = ++last_;
    submission.collective = Collective::barrier;
    submission.name = name;
    submission.timeout = second;
    groups_[rank]->call(std::move(submission));
  }
  void leaves(std::uint32_t rank) { groups_[rank]->leave(); }
  void hears_of_the_end_of(std::uint32_t other, std::uint32_t rank) { groups_[rank]->note_gone(other); }
  bool takes_steps(std::uint32_t rank) {
    bool any = false;
    while (groups_[rank]->step()) {
      groups_[rank]->check_invariants();
      any = true;
    }
    return any;
  }
  void take_steps() {
    while (takes_steps(0) || takes_steps(1)) {
    }
  }
  // Whether others wake it, beside for calls of its own.
  bool is_woken(std::uint32_t rank) const { return memory_.words(rank).open.load() > 0; }

  World worlds[ranks];

 private:
  static Shape shape() {
    Shape shape;
    shape.ranks = ranks;
    shape.mailbox = 8 * 1024;
    shape.slot = 128;
    shape.slots = shape.results = 1;
    return shape;
  }

  JobConfig config_;
  const sim::HeapGroup memory_{shape()};
  std::vector<std::unique_ptr<LocalGroup>> groups_;
  std::uint64_t last_ = 0;
};

}  // namespace

// What has failed on a rank the other nodes hear once somebody else has called it, or the rank leaves.
TEST(ranks_of_which_each_has_failed_alone_can_leave) {
  Node node;
  node.fails(0, "x");
  node.fails(1, "y");
  node.leaves(0);
  node.leaves(1);
  node.take_steps();
  CHECK(node.worlds[0].is_empty && node.worlds[1].is_empty);
  // As one that goes up and as one that is left to the workers: nobody here knows which it is.
  CHECK_EQ(node.worlds[0].told.size(), 4U);
  CHECK_EQ(node.worlds[0].told.front(), "x");
  CHECK_EQ(node.worlds[0].told.back(), "y");
}

TEST(a_rank_that_leaves_waits_for_nobody_who_does_not_call_what_has_failed_on_it) {
  for (const std::uint32_t leaver : {0U, 1U}) {
    Node node;
    node.fails(leaver, "y");
    node.take_steps();
    CHECK(node.worlds[0].told.empty());
    node.leaves(leaver);
    node.take_steps();
    CHECK(node.worlds[leaver].is_empty);
    CHECK_EQ(node.worlds[0].told.size(), 2U);
  }
}

// Who has not called yet may call something else under its name, and what other nodes wait for is that.
TEST(other_nodes_hear_of_what_has_failed_before_all_have_called_whatever_it_is_there) {
  Node node;
  node.leaves(1);
  node.take_steps();
  node.calls_barrier(0, "x");
  node.take_steps();
  CHECK_EQ(node.worlds[0].told.size(), 2U);
}

TEST(a_rank_that_leaves_wakes_the_leader_and_is_woken_for_its_word) {
  Node node;
  node.fails(1, "y");
  CHECK(!node.is_woken(1));
  node.leaves(1);
  node.takes_steps(1);
  CHECK(node.is_woken(1) && !node.worlds[1].is_empty);
  CHECK(node.worlds[1].wakes_leader);
  node.take_steps();
  CHECK(!node.is_woken(1) && node.worlds[1].is_empty);
}

// It has left, and does not say any more that it reads nothing.
TEST(a_rank_that_is_killed_after_it_has_left_keeps_nobody_from_leaving) {
  Node node;
  node.leaves(1);
  node.take_steps();
  for (int i = 0; i < 2'000; ++i) {
    node.fails(0, "gradient " + std::to_string(i));
    node.takes_steps(0);
  }
  node.leaves(0);
  node.takes_steps(0);
  CHECK(!node.worlds[0].is_empty);
  node.hears_of_the_end_of(1, 0);
  node.takes_steps(0);
  CHECK(node.worlds[0].is_empty);
}

RUN_TESTS()
