// The groups of ranks whose groups overlap: what each has to do with the others, and what not.

#include "engine/local_groups.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/keys.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using engine::LocalGroups;
using shm_ranks::config_of;
using shm_ranks::ranks_until;

constexpr std::uint32_t node_size = 4;

using Ranks = std::vector<std::uint32_t>;

// Nothing is sent up here.
std::uint32_t no_network(const Ranks&) { return 1; }

// One rank: its groups, and what became of its handles. Group numbers are its own.
class Member final : public shm::GroupUser {
 public:
  Member(const std::shared_ptr<const shm::Memory>& node, std::uint32_t rank, std::uint32_t in_job = node_size)
      : rank_(rank), groups_(node, config_of(in_job, node->shape().ranks), rank, *this) {
    groups_.add_group(0, world_group_id(in_job), ranks_until(in_job), no_network);
    groups_.start();
  }
  ~Member() override { groups_.close(); }

  std::uint32_t rank() const { return rank_; }
  LocalGroups& groups() { return groups_; }

  // Its number.
  std::uint32_t make(const Ranks& ranks, const std::string& name = "") {
    groups_.add_group(++made_, group_id(ranks, name, 0), ranks, no_network);
    return made_;
  }
  void release(std::uint64_t /*handle*/) override {}
  bool has_group(std::uint32_t group) const { return groups_.of(group) != nullptr; }

  std::uint64_t sum(std::uint32_t group, const std::string& name, std::vector<float>& values,
                    Time timeout = 30 * second) {
    Submission submission;
    submission.handle = ++last_;
    submission.collective = Collective::all_reduce;
    submission.group = group;
    submission.name = name;
    submission.op = Operator::sum;
    submission.dtype = DType::float32;
    submission.shape = {static_cast<std::int64_t>(values.size())};
    submission.input = submission.output = reinterpret_cast<std::byte*>(values.data());
    submission.input_bytes = submission.output_bytes = values.size() * sizeof(float);
    submission.timeout = timeout;
    const std::uint64_t handle = submission.handle;
    groups_.of(group)->submit(std::move(submission));
    return handle;
  }
  bool done(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    return finished_.contains(handle);
  }
  Status wait(std::uint32_t group, std::uint64_t handle) {
    groups_.of(group)->wait([&] { return done(handle); }, std::chrono::seconds(30));
    CHECK(done(handle));
    const std::lock_guard lock(mutex_);
    return finished_.at(handle);
  }
  void leave_all() {
    groups_.leave();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!is_empty && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(is_empty);
  }

  std::atomic<bool> is_empty{false};
  std::atomic<int> asked_of_network{0};

 private:
  void sending(std::uint64_t) override {}
  void finish(std::uint64_t handle, Status status) override {
    const std::lock_guard lock(mutex_);
    CHECK(finished_.emplace(handle, std::move(status)).second);
  }
  std::byte* allocate_output(std::uint64_t, const std::vector<std::uint64_t>&) override { return nullptr; }
  void warn(std::string) override {}
  void called(std::uint32_t /*group*/, const wire::Opening& /*opening*/) override {}
  void hand_over(Submission) override { ++asked_of_network; }
  void send_up(Submission) override { ++asked_of_network; }
  void contributed(std::uint64_t, Range) override { ++asked_of_network; }
  void fail_job(const Status&) override { ++asked_of_network; }
  void left(shm::SharedGroup& group) override {
    if (groups_.note_left(group)) {
      CHECK(!is_empty);
      is_empty = true;
    }
  }

  const std::uint32_t rank_;
  std::uint32_t made_ = 0;
  std::atomic<std::uint64_t> last_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, Status> finished_;  // guarded by mutex_
  LocalGroups groups_;
};

shm::Shape node_shape() {
  shm::Shape shape = shm::shape_for(node_size, true);
  shape.region = 0;
  return shape;
}

// Each rank in a thread of its own.
void on_members(const std::function<void(Member&)>& work, std::uint32_t in_job = node_size) {
  const auto node = std::make_shared<const shm::Memory>(node_shape());
  std::vector<std::unique_ptr<Member>> members;
  for (std::uint32_t rank = 0; rank < node_size; ++rank) {
    members.push_back(std::make_unique<Member>(node, rank, in_job));
  }
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Member>& member : members) {
    threads.emplace_back([&] { work(*member); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

float total(const Ranks& ranks) {
  float sum = 0;
  for (std::uint32_t rank : ranks) {
    sum += static_cast<float>(rank + 1);
  }
  return sum;
}

void overlap(std::uint32_t in_job) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  on_members(
      [&](Member& member) {
        std::mt19937_64 chance(seed + member.rank());
        struct Open {
          std::uint32_t group;
          std::uint64_t handle;
          float want;
          std::vector<float> values;
        };
        std::vector<Ranks> groups{{0, 1}, {2, 1}, {2, 3}, {3, 0}, {0, 2, 1}, {3, 1}};
        std::shuffle(groups.begin(), groups.end(), chance);
        std::vector<std::unique_ptr<Open>> open;
        for (const Ranks& ranks : groups) {
          if (std::find(ranks.begin(), ranks.end(), member.rank()) == ranks.end()) {
            continue;
          }
          const std::uint32_t group = member.make(ranks);
          CHECK(member.has_group(group));
          for (std::size_t count : {10U, 100'000U, 300'001U}) {
            open.push_back(std::make_unique<Open>(
                Open{group, 0, total(ranks), std::vector<float>(count, static_cast<float>(member.rank() + 1))}));
          }
        }
        // Names, since each calls them in an order of its own.
        std::shuffle(open.begin(), open.end(), chance);
        for (const auto& one : open) {
          one->handle = member.sum(one->group, std::to_string(one->values.size()), one->values);
        }
        std::shuffle(open.begin(), open.end(), chance);
        for (const auto& one : open) {
          CHECK(member.wait(one->group, one->handle).ok());
          CHECK(std::all_of(one->values.begin(), one->values.end(), [&](float value) { return value == one->want; }));
        }
        CHECK_EQ(member.asked_of_network.load(), 0);
      },
      in_job);
}

TEST(groups_that_overlap_flow_at_once_whatever_the_order) {
  for (int round = 0; round < 5; ++round) {
    overlap(node_size);
  }
}

TEST(groups_of_a_node_among_several_ask_nothing_of_the_network) { overlap(node_size + 2); }

// All of this node may be a group of some of the job.
TEST(only_groups_within_the_node_are_local) {
  const auto node = std::make_shared<const shm::Memory>(node_shape());
  Member member(node, 1, node_size + 2);
  CHECK(!member.has_group(member.make({1})));
  CHECK(!member.has_group(member.make({0, 1, 4})));
  CHECK(!member.has_group(member.make({5, 1})));
  CHECK(member.has_group(member.make({3, 1, 0, 2})));
  CHECK(member.has_group(member.make({3, 1})));
}

TEST(a_group_that_waits_keeps_no_other_waiting) {
  on_members([](Member& member) {
    if (member.rank() > 1) {
      return;
    }
    const std::uint32_t waits = member.make({0, 1, 2});
    const std::uint32_t flows = member.make({1, 0});
    std::vector<float> waiting(100'000, 1);
    const std::uint64_t handle = member.sum(waits, "waits", waiting);
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values(100'000, 1);
      CHECK(member.wait(flows, member.sum(flows, "", values)).ok());
      CHECK_EQ(values.back(), 2.0F);
    }
    CHECK(!member.done(handle));
  });
}

TEST(what_one_does_not_call_in_time_fails_for_its_group_and_all_goes_on) {
  on_members([](Member& member) {
    if (member.rank() == 3) {
      return;
    }
    const std::uint32_t group = member.make({2, 0, 1});
    const std::uint32_t other = member.rank() < 2 ? member.make({0, 1}) : 0;
    std::vector<float> late(50'000, 1);
    if (member.rank() != 1) {
      CHECK(member.wait(group, member.sum(group, "late", late, second / 2)).code == Code::timeout);
    }
    if (other != 0) {
      std::vector<float> values(50'000, 1);
      CHECK(member.wait(other, member.sum(other, "", values)).ok());
      CHECK_EQ(values.front(), 2.0F);
    }
    std::vector<float> values(50'000, 1);
    CHECK(member.wait(group, member.sum(group, "next", values)).ok());
    CHECK_EQ(values.front(), 3.0F);
  });
}

TEST(a_loss_ends_the_groups_that_have_it_and_no_other) {
  on_members([](Member& member) {
    if (member.rank() > 1) {
      return;
    }
    const std::uint32_t lost = member.make({0, 1, 2});
    const std::uint32_t left = member.make({0, 1});
    std::vector<float> waiting(100'000, 1);
    const std::uint64_t handle = member.sum(lost, "", waiting);
    member.groups().fail([&](std::uint32_t group) {
      return group == left ? Status() : Status::error(Code::peer_lost, "rank 2 is gone", 2);
    });
    CHECK(member.wait(lost, handle).code == Code::peer_lost);
    std::vector<float> values(100'000, 1);
    CHECK(member.wait(0, member.sum(0, "all", values)).code == Code::peer_lost);
    CHECK(member.wait(left, member.sum(left, "", values)).ok());
    CHECK_EQ(values.front(), 2.0F);
  });
}

// It has called the operation, and no thread of its goes on with it.
TEST(who_does_not_do_its_part_ends_its_group_and_no_other) {
  std::atomic<bool> stopped{false};
  on_members([&](Member& member) {
    std::vector<float> values(100'000, 1);
    if (member.rank() == 1) {
      member.sum(member.make({0, 1}), "", values);
      member.groups().close();
      stopped = true;
      return;
    }
    const std::uint32_t others = member.rank() == 3 ? 0 : member.make({2, 0});
    if (member.rank() == 0) {
      while (!stopped) {
        std::this_thread::yield();
      }
      const std::uint32_t group = member.make({0, 1});
      CHECK(member.wait(group, member.sum(group, "", values, second / 2)).code == Code::timeout);
      CHECK(member.wait(group, member.sum(group, "", values)).code == Code::timeout);
    }
    if (others != 0) {
      std::vector<float> ones(100'000, 1);
      CHECK(member.wait(others, member.sum(others, "", ones)).ok());
      CHECK_EQ(ones.front(), 2.0F);
    }
  });
}

TEST(goodbye_waits_for_what_is_open_in_any_group) {
  const auto node = std::make_shared<const shm::Memory>(node_shape());
  Member one(node, 1);
  Member two(node, 2);
  const std::uint32_t group = one.make({1, 2});
  std::vector<float> ones(100'000, 1);
  std::vector<float> twos(100'000, 2);
  const std::uint64_t first = one.sum(group, "", ones);
  one.groups().leave();
  CHECK(!one.is_empty);
  CHECK_EQ(node->words(1).left.load(), 0U);
  const std::uint32_t theirs = two.make({1, 2});
  const std::uint64_t second_handle = two.sum(theirs, "", twos);
  CHECK(two.wait(theirs, second_handle).ok());
  CHECK(one.wait(group, first).ok());
  CHECK_EQ(ones.back(), 3.0F);
  one.leave_all();
  CHECK(two.wait(theirs, two.sum(theirs, "more", twos)).code == Code::peer_left);
  two.leave_all();
}

// It has not made the group, so nothing of it is in the group's memory; it will read nothing there either.
TEST(who_has_left_is_missed_in_groups_that_it_never_made) {
  const auto node = std::make_shared<const shm::Memory>(node_shape());
  Member stays(node, 0);
  const std::uint32_t group = stays.make({0, 3});
  std::vector<float> values(10, 1);
  const std::uint64_t early = stays.sum(group, "early", values);
  Member leaves(node, 3);
  leaves.leave_all();
  CHECK(stays.wait(group, early).code == Code::peer_left);
  // More than fits into a mailbox that nobody reads.
  for (int i = 0; i < 3000; ++i) {
    CHECK(stays.wait(group, stays.sum(group, "", values)).code == Code::peer_left);
  }
  stays.leave_all();
}

// As the one above, where it had made the group, and called something before it left.
TEST(what_was_called_before_leaving_counts) {
  const auto node = std::make_shared<const shm::Memory>(node_shape());
  Member stays(node, 0);
  Member leaves(node, 3);
  const std::uint32_t theirs = leaves.make({0, 3});
  std::vector<float> values(10, 1);
  const std::uint64_t handle = leaves.sum(theirs, "", values);
  const std::uint32_t group = stays.make({0, 3});
  std::vector<float> own(10, 1);
  CHECK(stays.wait(group, stays.sum(group, "", own)).ok());
  CHECK(leaves.wait(theirs, handle).ok());
  leaves.leave_all();
  CHECK_EQ(own.front(), 2.0F);
  CHECK(!leaves.has_group(leaves.make({2, 3})));
}

}  // namespace

RUN_TESTS()
