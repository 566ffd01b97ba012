// The table of areas: which group of a node's ranks has which, whoever comes first.

#include "drivers/shm/areas.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/keys.h"
#include "tests/check.h"

namespace {

using namespace shoal;
using namespace shoal::shm;

Shape node_of(std::uint32_t ranks) {
  Shape shape = shape_for(ranks, true);
  shape.region = 0;
  return shape;
}

// As another rank has it.
std::shared_ptr<const Memory> mapped_again(const Memory& memory, const Shape& shape) {
  return std::make_shared<const Memory>(os::Descriptor(::dup(memory.descriptor())), shape);
}

Hash128 id_of(std::uint32_t number) { return group_id({0, 1}, "group " + std::to_string(number), 0); }

const std::vector<std::uint32_t> two{0, 1};

const std::size_t of_two = shape_for_group(2).bytes_in_use();

// Which area of the node it is, where all groups have 2 ranks; -1 for none.
int area_of(const std::shared_ptr<const Memory>& node, const std::shared_ptr<const Memory>& found) {
  if (found == nullptr) {
    return -1;
  }
  const std::size_t offset = node->file_offset(reinterpret_cast<const std::byte*>(&found->words(0)));
  CHECK_EQ((offset - node->shape().bytes_in_use()) % of_two, 0U);
  return static_cast<int>((offset - node->shape().bytes_in_use()) / of_two);
}

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::mt19937_64& chance) {
  std::vector<std::uint32_t> numbers(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    numbers[i] = i;
  }
  std::shuffle(numbers.begin(), numbers.end(), chance);
  return numbers;
}

bool is_zero(const std::byte* begin, std::size_t bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(an_area_is_new_memory_and_all_members_have_the_same) {
  const auto node = std::make_shared<const Memory>(node_of(4));
  const auto again = mapped_again(*node, node_of(4));
  const auto first = memory_for_group(node, id_of(1), {2, 0, 3});
  const auto second = memory_for_group(again, id_of(1), {2, 0, 3});
  CHECK(is_zero(first->mailbox(0), first->shape().mailbox * 3));
  std::memcpy(first->slot(1, 2), "here", 4);
  first->words(1).written.store(17);
  CHECK_EQ(std::memcmp(second->slot(1, 2), "here", 4), 0);
  CHECK_EQ(second->words(1).written.load(), 17U);
  // Nothing of the node's own, nor of another group's.
  const auto other = memory_for_group(node, id_of(2), {0, 3});
  std::memset(first->mailbox(0), 1,
              first->shape().bytes_in_use() - (first->mailbox(0) - reinterpret_cast<std::byte*>(&first->words(0))));
  CHECK(is_zero(node->mailbox(0), node->shape().mailbox * 4));
  CHECK(is_zero(other->mailbox(0), other->shape().mailbox * 2));
}

TEST(there_are_areas_for_hundreds_of_groups_of_every_size) {
  for (std::uint32_t ranks = 2; ranks <= most_ranks; ++ranks) {
    const Shape shape = shape_for(ranks, ranks % 2 == 0);
    CHECK(shape.areas / shape_for_group(2).bytes_in_use() > 200);
    CHECK_EQ(shape.areas % region_grain, 0U);
    CHECK_EQ(shape_for_group(ranks).bytes_in_use() % region_grain, 0U);
  }
}

std::vector<std::uint32_t> ranks_below(std::uint32_t count) {
  std::vector<std::uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return ranks;
}

// 100 groups of 2 to 5 ranks, which two processes make in orders of their own: each has memory that is all its own.
TEST(areas_of_groups_of_different_sizes_do_not_overlap) {
  std::mt19937_64 chance(std::random_device{}());
  Shape shape = node_of(5);
  const auto node = std::make_shared<const Memory>(shape);
  const auto again = mapped_again(*node, shape);
  constexpr std::uint32_t groups = 100;
  std::map<std::uint32_t, std::shared_ptr<const Memory>> found;
  for (const std::uint32_t group : shuffled(groups, chance)) {
    found[group] = memory_for_group(node, id_of(group), ranks_below(2 + group % 4));
  }
  std::map<std::size_t, std::size_t> ends;  // by begin
  for (const std::uint32_t group : shuffled(groups, chance)) {
    const auto other = memory_for_group(again, id_of(group), ranks_below(2 + group % 4));
    CHECK(found[group] != nullptr && other != nullptr);
    const std::size_t begin = node->file_offset(reinterpret_cast<const std::byte*>(&found[group]->words(0)));
    CHECK_EQ(again->file_offset(reinterpret_cast<const std::byte*>(&other->words(0))), begin);
    ends[begin] = begin + shape_for_group(2 + group % 4).bytes_in_use();
  }
  CHECK_EQ(ends.size(), groups);
  std::size_t last = shape.bytes_in_use();
  for (const auto& [begin, end] : ends) {
    CHECK_EQ(begin, last);
    last = end;
  }
  CHECK(last <= shape.bytes_without_regions());
}

// Each finds the area of each group, in an order of its own: what each has found.
std::vector<int> found_by(const std::shared_ptr<const Memory>& node, const std::vector<std::uint32_t>& order) {
  std::vector<int> areas(order.size());
  for (std::uint32_t group : order) {
    areas[group] = area_of(node, memory_for_group(node, id_of(group), two));
  }
  return areas;
}

TEST(threads_that_make_the_same_and_other_groups_at_once_agree) {
  std::mt19937_64 chance(std::random_device{}());
  constexpr std::uint32_t groups = 20;
  for (int round = 0; round < 20; ++round) {
    const auto node = std::make_shared<const Memory>(node_of(2));
    std::vector<std::vector<int>> found(4);
    std::vector<std::thread> threads;
    std::atomic<int> ready{0};
    for (std::vector<int>& own : found) {
      threads.emplace_back([&own, &node, &ready, order = shuffled(groups, chance)] {
        ++ready;
        while (ready < 4) {
        }
        own = found_by(node, order);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    std::vector<int> once = found.front();
    for (const std::vector<int>& other : found) {
      CHECK(other == once);
    }
    std::sort(once.begin(), once.end());
    for (std::uint32_t i = 0; i < groups; ++i) {
      CHECK_EQ(once[i], static_cast<int>(i));
    }
  }
}

TEST(processes_of_which_some_are_killed_agree) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 chance(seed);
  constexpr std::uint32_t groups = 30;
  for (int round = 0; round < 20; ++round) {
    const auto node = std::make_shared<const Memory>(node_of(2));
    const int descriptor = ::dup(node->descriptor());
    // What the children have found, by child; 99 where they have not come so far.
    auto* const found = static_cast<std::atomic<int>*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<pid_t> children;
    for (int child = 0; child < 4; ++child) {
      const std::vector<std::uint32_t> order = shuffled(groups, chance);
      children.push_back(::fork());
      if (children.back() == 0) {
        const auto own = std::make_shared<const Memory>(os::Descriptor(descriptor), node_of(2));
        for (std::uint32_t group : order) {
          found[child * groups + group] = 1 + area_of(own, memory_for_group(own, id_of(group), two));
        }
        ::_exit(0);
      }
    }
    ::close(descriptor);
    std::this_thread::sleep_for(std::chrono::microseconds(chance() % 5000));
    ::kill(children[0], SIGKILL);
    ::kill(children[1], SIGKILL);
    for (std::size_t child = 0; child < children.size(); ++child) {
      int status = 0;
      CHECK_EQ(::waitpid(children[child], &status, 0), children[child]);
      CHECK(child < 2 || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    }
    const std::vector<int> areas = found_by(node, shuffled(groups, chance));
    for (std::uint32_t group = 0; group < groups; ++group) {
      CHECK(areas[group] >= 0);
      CHECK_EQ(std::count(areas.begin(), areas.end(), areas[group]), 1);
      for (std::uint32_t child = 0; child < 4; ++child) {
        const int theirs = found[child * groups + group];
        CHECK(theirs == 1 + areas[group] || (child < 2 && theirs == 0));
      }
    }
    ::munmap(found, 4096);
  }
}

TEST(what_is_full_has_room_for_nobody_else_whoever_asks) {
  std::mt19937_64 chance(std::random_device{}());
  Shape shape = node_of(2);
  shape.areas = 20 * of_two;
  const auto node = std::make_shared<const Memory>(shape);
  const auto again = mapped_again(*node, shape);
  constexpr std::uint32_t groups = 30;
  const std::vector<int> first = found_by(node, shuffled(groups, chance));
  CHECK_EQ(std::count(first.begin(), first.end(), -1), 10);
  CHECK(found_by(again, shuffled(groups, chance)) == first);
}

// The first of a group to come decides, also for those that could have had the memory.
TEST(where_one_could_not_get_the_memory_nobody_has_it) {
  const auto node = std::make_shared<const Memory>(node_of(2));
  const auto poor = mapped_again(*node, node_of(2));
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_EQ(::dup2(nothing, poor->descriptor()), poor->descriptor());
  ::close(nothing);
  CHECK(memory_for_group(poor, id_of(1), two) == nullptr);
  CHECK(memory_for_group(node, id_of(1), two) == nullptr);
  CHECK_EQ(area_of(node, memory_for_group(node, id_of(2), two)), 0);
  CHECK_EQ(area_of(poor, memory_for_group(poor, id_of(2), two)), 0);
}

TEST(where_files_may_not_be_long_no_group_has_an_area) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Shape shape = shape_for(4, true);
    const rlimit limit{shape.bytes_in_use(), RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto node = std::make_shared<const Memory>(shape);
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &none);
    const auto again = mapped_again(*node, shape);
    const bool right = memory_for_group(node, id_of(1), two) == nullptr &&
                       memory_for_group(again, id_of(1), two) == nullptr && !again->has_regions();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// What has been taken stays, whatever becomes of another attempt at the same area.
TEST(who_fails_takes_nothing_from_who_was_first) {
  const auto node = std::make_shared<const Memory>(node_of(2));
  const auto first = memory_for_group(node, id_of(1), two);
  std::vector<unsigned char> there(first->shape().bytes_in_use() / 4096);
  auto* const begin = reinterpret_cast<std::byte*>(&first->words(0));
  // Reserved pages that nobody has touched are not among those that mincore finds in use.
  CHECK_EQ(::mincore(begin, first->shape().bytes_in_use(), there.data()), 0);
  CHECK(std::all_of(there.begin(), there.end(), [](unsigned char page) { return (page & 1U) != 0; }));
}

}  // namespace

RUN_TESTS()
