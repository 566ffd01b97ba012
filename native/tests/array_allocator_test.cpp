// Arrays in the memory that ranks of a node share: where they come from and go, what forked children see of them, sums
// straight from one to the other, and that nobody writes into those of an operation that has ended.

#include "drivers/shm/array_allocator.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "drivers/shm/memory.h"
#include "drivers/shm/shared_group.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;
using std::chrono::milliseconds;

constexpr std::size_t megabyte = 1024 * 1024;

Shape shape_with_regions(std::uint32_t ranks) {
  Shape shape = small_shape(ranks);
  shape.region = 64 * megabyte;
  return shape;
}

std::size_t resident(const Memory& memory) {
  struct stat found {};
  CHECK_EQ(::fstat(memory.descriptor(), &found), 0);
  return static_cast<std::size_t>(found.st_blocks) * 512;
}

// Zero or not as the last exit of a child says.
int exit_of(pid_t child) {
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Of floats, beside whoever keeps them.
struct Floats {
  std::shared_ptr<std::byte> memory;
  std::span<float> values;
};

Floats floats(SharedGroup& group, std::size_t count) {
  Floats made{group.allocate(count * sizeof(float)), {}};
  CHECK(made.memory != nullptr);
  made.values = {reinterpret_cast<float*>(made.memory.get()), count};
  return made;
}

float value(std::uint32_t rank, std::size_t i) { return static_cast<float>((rank + 1) * (i % 97 + 1)); }

void fill(std::span<float> values, std::uint32_t rank) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value(rank, i);
  }
}

void check_sum(std::span<const float> values, std::uint32_t ranks) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK_EQ(values[i], value(ranks * (ranks + 1) / 2 - 1, i));
  }
}

TEST(memory_is_zero_each_time_it_is_given_out_and_goes_back_to_the_system) {
  const auto memory = std::make_shared<Memory>(shape_with_regions(2));
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 1);
  const std::size_t before = resident(*memory);
  std::shared_ptr<std::byte> first = allocator->allocate(megabyte);
  const std::shared_ptr<std::byte> second = allocator->allocate(megabyte);
  CHECK(resident(*memory) >= before + 2 * megabyte);
  CHECK(first.get() + megabyte <= second.get() || second.get() + megabyte <= first.get());
  CHECK(allocator->holds(first.get(), megabyte));
  CHECK(allocator->holds(first.get() + 100, megabyte - 100));
  CHECK(!allocator->holds(memory->region(0), 1));
  std::fill_n(first.get(), megabyte, std::byte{1});
  std::byte* const place = first.get();
  first.reset();
  CHECK(resident(*memory) <= before + megabyte);
  CHECK(!allocator->holds(place, megabyte));
  first = allocator->allocate(megabyte);
  CHECK(first.get() == place);
  CHECK(std::all_of(place, place + megabyte, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(what_does_not_fit_into_the_region_is_not_there) {
  const auto memory = std::make_shared<Memory>(shape_with_regions(2));
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 0);
  CHECK(allocator->allocate(65 * megabyte) == nullptr);
  const std::shared_ptr<std::byte> most = allocator->allocate(63 * megabyte);
  CHECK(most != nullptr);
  CHECK(allocator->allocate(2 * megabyte) == nullptr);
  CHECK(allocator->allocate(megabyte) != nullptr);
}

TEST(memory_outlives_all_but_its_user) {
  std::shared_ptr<std::byte> kept;
  {
    const auto memory = std::make_shared<Memory>(shape_with_regions(2));
    Rank rank(memory, 0);
    kept = rank.group().allocate(megabyte);
  }
  std::fill_n(kept.get(), megabyte, std::byte{1});
}

TEST(where_files_may_not_be_long_there_are_no_regions_and_all_else_works) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{8 * megabyte, 8 * megabyte};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto memory = std::make_shared<Memory>(shape_with_regions(2));
    const Memory other(os::Descriptor(::dup(memory->descriptor())), shape_with_regions(2));
    const bool right = !memory->has_regions() && !other.has_regions() && !other.why_no_regions().empty() &&
                       std::make_shared<ArrayAllocator>(memory, 0)->allocate(megabyte) == nullptr;
    ::_exit(right ? 0 : 1);
  }
  CHECK_EQ(exit_of(child), 0);
}

TEST(a_forked_child_reads_the_arrays_and_writes_into_its_own) {
  const auto memory = std::make_shared<Memory>(shape_with_regions(2));
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 1);
  const std::shared_ptr<std::byte> whole = allocator->allocate(megabyte);
  const std::shared_ptr<std::byte> detached = allocator->allocate(megabyte);
  std::fill_n(whole.get(), megabyte, std::byte{1});
  std::fill_n(detached.get(), megabyte, std::byte{2});
  allocator->detach(detached.get() + 10, 1000);
  const pid_t child = ::fork();
  if (child == 0) {
    bool right = whole.get()[megabyte - 1] == std::byte{1} && detached.get()[0] == std::byte{2} &&
                 detached.get()[megabyte - 1] == std::byte{2};
    std::fill_n(whole.get(), megabyte, std::byte{3});
    std::fill_n(detached.get(), megabyte, std::byte{3});
    // Its own children have what it has.
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      ::_exit(whole.get()[5] == std::byte{3} ? 0 : 1);
    }
    right = exit_of(grandchild) == 0 && right;
    ::_exit(right ? 0 : 1);
  }
  CHECK_EQ(exit_of(child), 0);
  CHECK(std::all_of(whole.get(), whole.get() + megabyte, [](std::byte b) { return b == std::byte{1}; }));
  CHECK(std::all_of(detached.get(), detached.get() + megabyte, [](std::byte b) { return b == std::byte{2}; }));
}

TEST(what_is_detached_keeps_its_values_and_others_reach_it_no_more) {
  const auto memory = std::make_shared<Memory>(shape_with_regions(2));
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 1);
  const std::shared_ptr<std::byte> array = allocator->allocate(megabyte);
  std::fill_n(array.get(), megabyte, std::byte{1});
  // As another process has it.
  const Memory others(os::Descriptor(::dup(memory->descriptor())), shape_with_regions(2));
  others.open(1, memory->shape().region);
  std::byte* const there = others.region(1) + (array.get() - memory->region(1));
  std::fill_n(there, 100, std::byte{2});
  CHECK(array.get()[99] == std::byte{2});
  allocator->detach(array.get() + 300'000, 200'000);
  allocator->detach(array.get() + 400'000, 200'000);
  std::fill_n(there, megabyte, std::byte{3});
  CHECK(array.get()[0] == std::byte{3});
  CHECK(std::all_of(array.get() + 300'000, array.get() + 600'000, [](std::byte b) { return b == std::byte{1}; }));
}

// A device that was told of these addresses reads and writes the pages that were there.
TEST(what_stays_has_its_pages_when_it_is_detached_and_they_are_not_given_out_again) {
  const auto memory = std::make_shared<Memory>(shape_with_regions(2));
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 1);
  std::shared_ptr<std::byte> array = allocator->allocate(megabyte, true);
  const std::byte* const before = array.get();
  const Memory others(os::Descriptor(::dup(memory->descriptor())), shape_with_regions(2));
  others.open(1, memory->shape().region);
  std::byte* const there = others.region(1) + (array.get() - memory->region(1));
  allocator->detach(array.get() + 300'000, 200'000);
  std::fill_n(there, megabyte, std::byte{3});
  CHECK(std::all_of(array.get(), array.get() + megabyte, [](std::byte b) { return b == std::byte{3}; }));
  array.reset();
  CHECK(allocator->allocate(megabyte, true).get() != before);
}

TEST(sums_in_shared_memory_are_right_at_every_size_in_place_and_not) {
  for (std::uint32_t ranks : {2U, 3U, 5U}) {
    on_ranks(ranks, shape_with_regions(ranks), [&](Rank& rank) {
      for (std::size_t count : {1U, 4096U, 4097U, 20'000U, 100'001U, 1'500'000U}) {
        const Floats input = floats(rank.group(), count);
        const Floats output = floats(rank.group(), count);
        fill(input.values, rank.rank());
        CHECK(rank.wait(rank.submit("", input.values, output.values)).ok());
        check_sum(output.values, ranks);
        CHECK_EQ(input.values[count - 1], value(rank.rank(), count - 1));
        CHECK(rank.wait(rank.submit("", input.values, input.values)).ok());
        check_sum(input.values, ranks);
      }
    });
  }
}

TEST(arrays_in_shared_memory_and_elsewhere_take_turns_and_may_differ_between_ranks) {
  constexpr std::uint32_t ranks = 4;
  on_ranks(ranks, shape_with_regions(ranks), [&](Rank& rank) {
    std::vector<Floats> kept;
    std::vector<std::vector<float>> ordinary(40);
    std::vector<std::span<float>> arrays;
    std::vector<std::uint64_t> handles;
    for (std::uint32_t i = 0; i < 40; ++i) {
      const std::size_t count = 5000 + 3000 * i;
      // A third in shared memory on all ranks, a third on none, a third on some.
      if (i % 3 == 0 || (i % 3 == 1 && (rank.rank() + i) % ranks != 0)) {
        kept.push_back(floats(rank.group(), count));
        arrays.push_back(kept.back().values);
      } else {
        ordinary[i].resize(count);
        arrays.push_back(ordinary[i]);
      }
      fill(arrays.back(), rank.rank());
      handles.push_back(rank.submit(std::to_string(i), arrays.back(), arrays.back()));
    }
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK((i % 2 == 0 ? rank.wait(handles[i]) : rank.watch(handles[i])).ok());
      check_sum(arrays[i], ranks);
    }
  });
}

// In a process of its own: all-reduces in shared memory until it is killed.
[[noreturn]] void work_until_killed(const std::shared_ptr<const Memory>& memory, std::uint32_t own, std::size_t count) {
  Rank rank(memory, own);
  const Floats array = floats(rank.group(), count);
  for (;;) {
    std::fill(array.values.begin(), array.values.end(), 1.0F);
    static_cast<void>(rank.wait(rank.submit("", array.values, array.values)));
  }
}

// One of two others is killed in the middle, and the last one goes on with its share.
TEST(nobody_writes_into_an_array_when_its_operation_has_failed) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 chance(seed);
  constexpr std::size_t count = 4'000'000;
  for (int round = 0; round < 20; ++round) {
    const auto memory = std::make_shared<Memory>(shape_with_regions(3));
    const int descriptor = ::dup(memory->descriptor());
    std::vector<pid_t> children;
    for (std::uint32_t rank : {1U, 2U}) {
      const pid_t child = ::fork();
      if (child == 0) {
        work_until_killed(std::make_shared<Memory>(os::Descriptor(descriptor), shape_with_regions(3)), rank, count);
      }
      children.push_back(child);
    }
    ::close(descriptor);
    {
      Rank rank(memory, 0);
      const Floats array = floats(rank.group(), count);
      CHECK(rank.wait(rank.submit("", array.values, array.values)).ok());
      std::thread killer([&, wait = std::chrono::microseconds(chance() % 60'000)] {
        std::this_thread::sleep_for(wait);
        ::kill(children[chance() % 2], SIGKILL);
        rank.group().fail_all(Status::error(Code::peer_lost, "killed", 1));
      });
      Status status;
      while (status.ok()) {
        std::fill(array.values.begin(), array.values.end(), 1.0F);
        status = rank.wait(rank.submit("", array.values, array.values));
      }
      CHECK(status.code == Code::peer_lost);
      std::fill(array.values.begin(), array.values.end(), 7.0F);
      killer.join();
      std::this_thread::sleep_for(milliseconds(20));
      CHECK(std::all_of(array.values.begin(), array.values.end(), [](float v) { return v == 7.0F; }));
    }
    for (pid_t child : children) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
}

}  // namespace

RUN_TESTS()
