// Ranks of a machine that have joined: whom the others hear of that something has failed on, and what becomes of calls
// that are handed over.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/sim/heap_group.h"
#include "protocol/joining.h"
#include "protocol/keys.h"
#include "protocol/local/local_group.h"
#include "tests/check.h"
#include "tests/local_worlds.h"

namespace {

using namespace shoal;
using namespace shoal::local;

struct HostWorld final : IdleLocalWorld {
  void finish(std::uint64_t handle, Status status) override { ended.emplace(handle, std::move(status)); }
  void called(std::uint32_t, const wire::Opening& opening) override { heard.push_back(opening); }
  void hand_over(Submission submission) override { handed_over.push_back(std::move(submission)); }
  void open_as_failed(Submission submission) override { told.push_back(std::move(submission)); }

  std::map<std::uint64_t, Status> ended;  // by handle
  std::vector<wire::Opening> heard;
  std::vector<Submission> handed_over;
  std::vector<Submission> told;  // to the other nodes
};

// The ranks of a machine; with `has_other_nodes` one of another, too. Handles are the ranks' numbers.
class Host {
 public:
  Host(std::uint32_t ranks, bool has_other_nodes) : worlds(ranks), memory_(shape_of(ranks, has_other_nodes)) {
    std::vector<std::uint32_t> here;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      here.push_back(rank);
      config_.hosts.emplace_back("a");
      config_.leaders.push_back(0);
    }
    std::vector<std::uint32_t> all = here;
    if (has_other_nodes) {
      all.push_back(ranks);
      config_.hosts.emplace_back("b");
      config_.leaders.push_back(ranks);
    }
    config_.weights = {1};
    const auto in_job = static_cast<std::uint32_t>(all.size());
    for (const std::uint32_t rank : here) {
      groups_.push_back(std::make_unique<LocalGroup>(memory_, config_, here, rank, has_other_nodes, worlds[rank]));
      groups_[rank]->add_group(0, world_group_id(in_job), all,
                               has_other_nodes ? std::optional(Internode{1, in_job, ranks, {1}, 0}) : std::nullopt);
    }
  }

  void joins(std::uint32_t rank) { groups_[rank]->join(0); }
  void calls(std::uint32_t rank, const std::string& name, Collective collective, const std::string& failure = "") {
    Submission submission;
    submission.handle = rank;
    submission.collective = collective;
    submission.name = name;
    if (collective == Collective::all_reduce) {
      submission.op = Operator::sum;
      submission.dtype = DType::uint8;
      submission.shape = {static_cast<std::int64_t>(sizeof(array_))};
      submission.input = submission.output = array_;
      submission.input_bytes = submission.output_bytes = sizeof(array_);
    }
    submission.timeout = second;
    submission.failure = failure;
    groups_[rank]->call(std::move(submission));
    take_steps();
  }
  // What it has heard of.
  void calls_for_others(std::uint32_t rank) {
    for (const wire::Opening& opening : std::exchange(worlds[rank].heard, {})) {
      std::uint64_t bytes = 0;
      Submission call = call_of_joined(opening, 0, second, bytes);
      call.handle = rank;
      CHECK(bytes <= sizeof(array_));
      call.input = call.output = bytes == 0 ? nullptr : array_;
      call.input_bytes = call.output_bytes = bytes;
      groups_[rank]->call(std::move(call));
    }
    take_steps();
  }
  void take_steps() {
    for (std::size_t idle = 0; idle < groups_.size();) {
      for (const auto& group : groups_) {
        idle = group->step() || group->work() ? 0 : idle + 1;
        group->check_invariants();
      }
    }
  }

  std::vector<HostWorld> worlds;  // by rank

 private:
  static Shape shape_of(std::uint32_t ranks, bool has_other_nodes) {
    Shape shape;
    shape.ranks = ranks;
    shape.mailbox = 8 * 1024;
    shape.slot = 4096;
    shape.slots = 1;
    shape.results = has_other_nodes ? 1 : 0;
    return shape;
  }

  JobConfig config_;
  const sim::HeapGroup memory_;
  std::byte array_[64] = {};
  std::vector<std::unique_ptr<LocalGroup>> groups_;
};

bool names(const Status& status, const std::string& rank) {
  return status.message.find("failed on " + rank) != std::string::npos;
}

}  // namespace

TEST(what_a_joined_rank_calls_as_failed_names_the_rank_that_it_has_failed_on) {
  Host host(3, false);
  host.joins(0);
  host.calls(2, "x", Collective::all_reduce, "no such array");
  CHECK_EQ(host.worlds[0].heard.size(), 1U);
  host.calls_for_others(0);
  host.calls(1, "x", Collective::all_reduce);
  for (const std::uint32_t rank : {0U, 1U}) {
    const Status& end = host.worlds[rank].ended.at(rank);
    CHECK(end.code == Code::failed_on_rank);
    CHECK_EQ(end.rank, 2);
    CHECK(names(end, "rank 2"));
  }
}

TEST(a_joined_leader_tells_the_other_nodes_which_rank_of_its_own_something_has_failed_on) {
  Host host(2, true);
  host.joins(0);
  host.calls(1, "x", Collective::all_reduce, "no such array");
  host.calls_for_others(0);
  CHECK(!host.worlds[0].told.empty());
  for (const Submission& told : host.worlds[0].told) {
    CHECK(told.failure_code == Code::failed_on_rank);
    CHECK_EQ(told.failure_rank, 1);
    CHECK(told.failure.find("failed on rank 1") != std::string::npos);
  }
}

// A call for others that CALLED has told of: from another node.
TEST(what_failed_on_another_node_keeps_its_status_when_a_joined_rank_calls_it) {
  Host host(2, true);
  host.joins(0);
  wire::Opening opening;
  opening.name = "x";
  opening.group = world_group_id(3);
  opening.failed = true;
  opening.code = Code::limit;
  opening.rank = 2;
  opening.text = std::string("no room on rank 2");
  host.worlds[0].heard.push_back(opening);
  host.calls_for_others(0);
  host.calls(1, "x", Collective::all_reduce);
  const Status& end = host.worlds[1].ended.at(1);
  CHECK(end.code == Code::limit);
  CHECK_EQ(end.rank, 2);
  CHECK_EQ(end.message, opening.text);
}

// It would keep their numbers for ever: it counts no others of these names.
TEST(a_call_for_others_that_is_handed_over_is_an_ordinary_one_for_the_worker) {
  Host host(2, true);
  host.joins(0);
  host.calls(1, "x", Collective::barrier);
  host.calls_for_others(0);
  for (const HostWorld& world : host.worlds) {
    CHECK_EQ(world.handed_over.size(), 1U);
    CHECK(!world.handed_over[0].told);
    CHECK_EQ(world.handed_over[0].occurrence.value(), 0U);
  }
}

RUN_TESTS()
