// Rooms of a node among several, on a network that the tests play themselves: ranks as threads over one mapping.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/shm/memory.h"
#include "drivers/shm/shared_group.h"
#include "protocol/local/chunks.h"
#include "protocol/sharding.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;
using std::chrono::milliseconds;

constexpr std::uint32_t in_the_job = 4;

// The other node gives zeros.
void answer(Rank& rank, const Submission& submission) {
  if (submission.streamed) {
    rank.group().received(submission.handle, {0, submission.output_bytes});
  }
  rank.group().averaged(submission.handle, {});
}

TEST(small_sums_come_back_from_the_network_to_all_ranks) {
  on_ranks(
      2, small_shape(2),
      [](Rank& rank) {
        rank.network = [&](const Submission& submission) { answer(rank, submission); };
        for (int round = 0; round < 100; ++round) {
          std::vector<float> values(8, static_cast<float>(rank.rank() + 1));
          CHECK(rank.wait(rank.submit("sum", values)).ok());
          CHECK_EQ(values[7], 3.0F);
        }
      },
      in_the_job);
}

// Another node is lost while an operation is sent up: so the network says at once, from the same thread.
TEST(the_network_may_answer_what_is_sent_up_with_the_end_of_the_job) {
  on_ranks(
      2, small_shape(2),
      [](Rank& rank) {
        const Status loss = Status::error(Code::peer_lost, "rank 3 is gone", 3);
        rank.network = [&](const Submission&) { rank.group().fail_all(loss); };
        std::vector<float> values(8, 1);
        const std::uint64_t handle = rank.submit("sum", values);
        if (rank.rank() == 1) {
          rank.group().fail_all(loss);
        }
        const Status status = rank.wait(handle);
        CHECK(status.code == Code::peer_lost);
        CHECK_EQ(status.rank, 3);
      },
      in_the_job);
}

TEST(the_network_may_answer_what_is_handed_over_with_the_end_of_the_job) {
  on_ranks(
      2, small_shape(2),
      [](Rank& rank) {
        std::vector<float> values(8, 1);
        rank.at_next_finish([&] { rank.group().fail_all(Status::error(Code::peer_lost, "rank 3 is gone", 3)); });
        const Status status = rank.wait(rank.submit("rows", values, Operator::none, Collective::broadcast));
        CHECK_EQ(status.message, "handed over");
        CHECK(rank.wait(rank.submit("more", values)).code == Code::peer_lost);
      },
      in_the_job);
}

// One that calls last is told at once that the others disagree; its array is its own again then.
TEST(what_others_disagree_about_takes_nothing_of_one_that_calls_later) {
  constexpr std::uint32_t ranks = 3;
  constexpr std::size_t count = 1024;
  std::atomic<int> settled{0};
  std::atomic<bool> was_small{false};
  on_ranks(
      ranks, small_shape(ranks),
      [&](Rank& rank) {
        rank.network = [&](const Submission& submission) {
          if (submission.failure.empty()) {
            was_small = !submission.streamed;
            answer(rank, submission);
          }
        };
        // More than the contributions that may lie beside openings together.
        for (int round = 0; round < 40; ++round) {
          std::vector<float> values(rank.rank() == 2 ? count : count / 2, 1);
          // Rank 1 calls when the others have been told, and they do not go on before it has.
          while (settled < 3 * round + (rank.rank() == 1 ? 2 : 0)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          CHECK(rank.wait(rank.submit("different", values)).code == Code::mismatch);
          ++settled;
        }
        std::vector<float> values(count, 1);
        CHECK(rank.wait(rank.submit("same", values)).ok());
        CHECK_EQ(values[count - 1], 3.0F);
      },
      in_the_job);
  CHECK(was_small);
}

// --- Arrays in the shared memory ---

constexpr std::size_t megabyte = 1024 * 1024;

Shape shape_with_regions(std::uint32_t ranks) {
  Shape shape;
  shape.ranks = ranks;
  shape.slots = 3;
  shape.slot = 8192;
  shape.results = 2;
  shape.region = 64 * megabyte;
  return shape;
}

// Of a rank: in the shared memory, or ordinary.
struct Array {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;

  std::byte* begin() const { return memory.get(); }
  std::byte* end() const { return memory.get() + bytes; }
};

Array array_of(Rank& rank, std::size_t bytes, bool shared) {
  Array made{shared ? rank.group().allocate(bytes)
                    : std::shared_ptr<std::byte>(new std::byte[bytes](), std::default_delete<std::byte[]>()),
             bytes};
  CHECK(made.memory != nullptr);
  return made;
}

Submission submission_of(const Array& input, const Array& output, DType dtype, Operator op) {
  Submission submission;
  submission.collective = Collective::all_reduce;
  submission.op = op;
  submission.dtype = dtype;
  submission.shape = {static_cast<std::int64_t>(input.bytes / size_of(dtype))};
  submission.input = input.begin();
  submission.output = output.begin();
  submission.input_bytes = submission.output_bytes = input.bytes;
  return submission;
}

// A network that keeps what it is given, and gives back the complement of every byte: on the leader.
class Mirror {
 public:
  explicit Mirror(Rank& rank) {
    rank.network = [this](const Submission& submission) { submission_ = submission; };
    rank.on_contributed = [this, &rank](std::uint64_t handle, Range range) { turn(rank, handle, range); };
  }

  // It uses no array any more.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }

  std::vector<Range> ranges;     // in which it was given the last operation
  std::vector<std::byte> given;  // of that

 private:
  void turn(Rank& rank, std::uint64_t handle, Range range) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return;
    }
    CHECK_EQ(handle, submission_.handle);
    if (seen_ == 0) {
      ranges.clear();
      given.assign(submission_.output_bytes, {});
    }
    std::byte* const begin = submission_.output + range.begin;
    std::copy(begin, begin + range.size(), given.begin() + static_cast<std::ptrdiff_t>(range.begin));
    std::transform(begin, begin + range.size(), begin, [](std::byte b) { return ~b; });
    ranges.push_back(range);
    rank.group().received(handle, range);
    seen_ += range.size();
    if (seen_ == submission_.output_bytes) {
      seen_ = 0;
      rank.group().averaged(handle, {});
    }
  }

  std::mutex mutex_;
  Submission submission_;
  std::size_t seen_ = 0;
  bool ended_ = false;  // guarded by mutex_
};

struct Kept {
  std::vector<Range> ranges;
  std::vector<std::byte> given;
  std::vector<std::vector<std::byte>> taken;  // by rank
};

// One all-reduce of a node of so many ranks; `others`: ranks of the other node.
Kept all_reduce(std::uint32_t ranks, std::uint32_t others, DType dtype, Operator op, std::size_t count, bool shared,
                bool in_place) {
  Kept kept;
  kept.taken.resize(ranks);
  const std::size_t bytes = count * size_of(dtype);
  on_ranks(
      ranks, shape_with_regions(ranks),
      [&](Rank& rank) {
        std::optional<Mirror> mirror;
        if (rank.rank() == 0) {
          mirror.emplace(rank);
        }
        const Array input = array_of(rank, bytes, shared);
        const Array output = in_place ? input : array_of(rank, bytes, shared);
        std::mt19937 chance(rank.rank());
        // Bytes that are ordinary numbers in every type.
        std::generate(input.begin(), input.end(), [&] { return static_cast<std::byte>(0x30 + chance() % 16); });
        const std::vector<std::byte> before(input.begin(), input.end());
        CHECK(rank.wait(rank.submit(submission_of(input, output, dtype, op))).ok());
        CHECK(in_place || std::equal(before.begin(), before.end(), input.begin()));
        kept.taken[rank.rank()].assign(output.begin(), output.end());
        if (mirror) {
          kept.ranges = mirror->ranges;
          kept.given = mirror->given;
        }
      },
      ranks + others);
  return kept;
}

TEST(arrays_in_shared_memory_give_the_bits_that_slots_give) {
  for (const auto& [ranks, others] : {std::pair{1U, 3U}, std::pair{3U, 5U}, std::pair{5U, 3U}}) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8}) {
      for (const Operator op : {Operator::sum, Operator::mean, Operator::max}) {
        for (const std::size_t count : {20'001U, 400'003U}) {
          const Kept slots = all_reduce(ranks, others, dtype, op, count, false, true);
          std::vector<std::byte> turned = slots.given;
          std::transform(turned.begin(), turned.end(), turned.begin(), [](std::byte b) { return ~b; });
          CHECK(!turned.empty());
          for (const bool in_place : {true, false}) {
            const Kept shared = all_reduce(ranks, others, dtype, op, count, true, in_place);
            CHECK(shared.given == slots.given);
            for (std::uint32_t rank = 0; rank < ranks; ++rank) {
              CHECK(shared.taken[rank] == turned);
              CHECK(slots.taken[rank] == turned);
            }
          }
        }
      }
    }
  }
}

// A server that begins in the middle of a chunk would wait for all that others have before it.
TEST(every_chunk_is_of_one_servers_shard_and_all_shards_have_some_of_every_turn) {
  const std::vector<std::vector<std::uint32_t>> servers{{1}, {1, 1}, {0, 5, 0, 4}, {1, 1000}, {7, 1, 3, 3, 3}};
  for (const std::vector<std::uint32_t>& weights : servers) {
    for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{65}, std::uint64_t{640'000},
                                      std::uint64_t{25'000'000}, std::uint64_t{100'000'004}}) {
      for (const std::uint64_t chunk : {std::uint64_t{64 * 1024}, std::uint64_t{256 * 1024}}) {
        const Chunks chunks(bytes, chunk, weights);
        std::vector<Range> shards;
        for (std::size_t server = 0; server < weights.size(); ++server) {
          if (const Range shard = shard_of(bytes, weights, server); !shard.empty()) {
            shards.push_back(shard);
          }
        }
        std::vector<Range> came = shards;
        for (std::uint64_t number = 0; number < chunks.count(); ++number) {
          const Range range = chunks.at(number);
          Range& shard = came[number % shards.size()];
          CHECK(range.size() <= chunk);
          CHECK(range.empty() ? shard.empty() : range.begin == shard.begin && range.end <= shard.end);
          shard.begin += range.size();
          if (!range.empty()) {
            CHECK(chunks.holding(range.begin) == number && chunks.holding(range.end - 1) == number);
          }
        }
        for (const Range& rest : came) {
          CHECK(rest.empty());
        }
      }
    }
  }
}

// So that no server waits for what belongs to another one.
TEST(what_is_summed_in_shared_memory_goes_up_chunk_by_chunk_in_turns_of_the_servers) {
  constexpr std::size_t bytes = 4 * megabyte;
  const Kept kept = all_reduce(3, 3, DType::float32, Operator::sum, bytes / 4, true, true);
  const Chunks chunks(bytes, 3 * std::size_t{128} * 1024, weights_above);
  std::vector<Range> right;
  for (std::uint64_t number = 0; number < chunks.count(); ++number) {
    if (const Range chunk = chunks.at(number); !chunk.empty()) {
      right.push_back(chunk);
    }
  }
  CHECK(right.size() > 10);
  CHECK(kept.ranges == right);
}

TEST(arrays_in_shared_memory_and_elsewhere_take_turns_among_nodes) {
  constexpr std::uint32_t ranks = 3;
  on_ranks(
      ranks, shape_with_regions(ranks),
      [&](Rank& rank) {
        std::optional<Mirror> mirror;
        if (rank.rank() == 0) {
          mirror.emplace(rank);
        }
        for (std::uint32_t round = 0; round < 60; ++round) {
          // A third in shared memory on all ranks, a third on none, a third on some.
          const bool shared = round % 3 == 0 || (round % 3 == 1 && (rank.rank() + round) % ranks != 0);
          const std::size_t bytes = 20'000 + 40'000 * round;
          const Array array = array_of(rank, bytes, shared);
          std::fill(array.begin(), array.end(), std::byte{3});
          const std::uint64_t handle = rank.submit(submission_of(array, array, DType::uint8, Operator::sum));
          CHECK((round % 2 == 0 ? rank.wait(handle) : rank.watch(handle)).ok());
          CHECK(std::all_of(array.begin(), array.end(), [](std::byte b) { return b == ~std::byte{9}; }));
        }
      },
      ranks + 1);
}

// Some results are there when the other nodes disagree; nobody is told of more of them after that.
TEST(an_operation_that_fails_in_the_middle_ends_so_on_all_ranks_and_the_next_goes_on) {
  constexpr std::uint32_t ranks = 3;
  for (const bool shared : {true, false}) {
    on_ranks(
        ranks, shape_with_regions(ranks),
        [&](Rank& rank) {
          std::vector<Range> there;
          std::size_t bytes = 0;
          rank.network = [&](const Submission& submission) {
            there.clear();
            bytes = submission.output_bytes;
          };
          bool fails = true;
          rank.on_contributed = [&](std::uint64_t handle, Range range) {
            there.push_back(range);
            bytes -= range.size();
            if (bytes > 0) {
              return;
            }
            there.resize(fails ? there.size() / 2 : there.size());
            std::for_each(there.begin(), there.end(), [&](Range one) { rank.group().received(handle, one); });
            rank.group().averaged(handle, fails ? Status::error(Code::timeout, "too late") : Status{});
          };
          const Array array = array_of(rank, 500'000, shared);
          for (int round = 0; round < 20; ++round) {
            fails = round % 2 == 0;
            const Status status = rank.wait(rank.submit(submission_of(array, array, DType::float32, Operator::sum)));
            CHECK_EQ(status.message, fails ? "too late" : "");
          }
        },
        ranks + 1);
  }
}

// The other rank of the node, in a process of its own.
class Neighbour {
 public:
  // `in_child` says how the process exits.
  template <class Work>
  Neighbour(const Memory& memory, std::uint32_t own, const Shape& shape, Work in_child) {
    const int descriptor = ::dup(memory.descriptor());
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Rank rank(std::make_shared<Memory>(os::Descriptor(descriptor), shape), own, in_the_job);
      ::_exit(in_child(rank) ? 0 : 1);
    }
    ::close(descriptor);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;
  ~Neighbour() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
  }

  void stop() const {
    ::kill(process_, SIGSTOP);
    int status = 0;
    CHECK_EQ(::waitpid(process_, &status, WUNTRACED), process_);
    CHECK(WIFSTOPPED(status));
  }
  void go_on() const { ::kill(process_, SIGCONT); }
  bool succeeded() {
    int status = 0;
    CHECK_EQ(::waitpid(process_, &status, 0), process_);
    process_ = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t process_ = 0;
};

constexpr std::size_t lent_bytes = 4 * megabyte;

// All ones, which the network gives back as they are, when the other rank has been stopped.
class StopsNeighbour {
 public:
  StopsNeighbour(Rank& rank, const Neighbour& neighbour) {
    rank.on_contributed = [this, &rank, &neighbour](std::uint64_t handle, Range range) {
      bytes_ += range.size();
      if (bytes_ == lent_bytes) {
        neighbour.stop();
        rank.group().received(handle, {0, lent_bytes});
        rank.group().averaged(handle, {});
        has_stopped_ = true;
      }
    };
  }

  // Works until then, and for a while after that.
  void wait(Rank& rank, std::uint64_t handle) {
    rank.group().wait([&] { return has_stopped_.load(); }, std::chrono::seconds(30));
    CHECK(has_stopped_);
    rank.group().wait([&] { return rank.done(handle); }, milliseconds(300));
  }

 private:
  std::size_t bytes_ = 0;
  std::atomic<bool> has_stopped_{false};
};

bool all_are(const Array& array, std::byte what) {
  return std::all_of(array.begin(), array.end(), [&](std::byte b) { return b == what; });
}

TEST(the_first_rank_keeps_its_array_until_the_others_have_copied_the_result) {
  const Shape shape = shape_with_regions(2);
  const auto memory = std::make_shared<Memory>(shape);
  Neighbour neighbour(*memory, 1, shape, [](Rank& rank) {
    const Array array = array_of(rank, lent_bytes, true);
    std::fill(array.begin(), array.end(), std::byte{1});
    const Status status = rank.wait(rank.submit(submission_of(array, array, DType::uint8, Operator::sum)));
    return status.ok() && all_are(array, std::byte{2});
  });
  Rank rank(memory, 0, in_the_job);
  StopsNeighbour network(rank, neighbour);
  const Array array = array_of(rank, lent_bytes, true);
  std::fill(array.begin(), array.end(), std::byte{1});
  const std::uint64_t handle = rank.submit(submission_of(array, array, DType::uint8, Operator::sum));
  network.wait(rank, handle);
  CHECK(!rank.done(handle));
  neighbour.go_on();
  CHECK(rank.wait(handle).ok());
  std::fill(array.begin(), array.end(), std::byte{7});
  CHECK(neighbour.succeeded());
}

TEST(what_is_copied_from_an_array_that_is_in_use_again_is_no_result) {
  const Shape shape = shape_with_regions(2);
  const auto memory = std::make_shared<Memory>(shape);
  Neighbour neighbour(*memory, 1, shape, [](Rank& rank) {
    const Array array = array_of(rank, lent_bytes, true);
    const std::uint64_t handle = rank.submit(submission_of(array, array, DType::uint8, Operator::sum));
    rank.group().wait([&] { return rank.done(handle); }, milliseconds(1000));
    const bool ended_well = rank.done(handle);
    rank.group().fail_all(Status::error(Code::peer_lost, "gone", 3));
    return !ended_well && rank.wait(handle).code == Code::peer_lost;
  });
  Rank rank(memory, 0, in_the_job);
  StopsNeighbour network(rank, neighbour);
  {
    const Array array = array_of(rank, lent_bytes, true);
    const std::uint64_t handle = rank.submit(submission_of(array, array, DType::uint8, Operator::sum));
    network.wait(rank, handle);
    CHECK(!rank.done(handle));
    rank.group().fail_all(Status::error(Code::peer_lost, "gone", 3));
    CHECK(rank.wait(handle).code == Code::peer_lost);
    std::fill(array.begin(), array.end(), std::byte{7});
  }
  neighbour.go_on();
  CHECK(neighbour.succeeded());
}

// Stopped at any moment, also in the middle of its share of a sum, and gone on when the leader has given up.
TEST(nobody_writes_into_the_first_ranks_array_when_its_operation_has_failed) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 chance(seed);
  const Shape shape = shape_with_regions(2);
  constexpr std::size_t bytes = 4 * megabyte;
  for (int round = 0; round < 20; ++round) {
    const auto memory = std::make_shared<Memory>(shape);
    const Neighbour neighbour(*memory, 1, shape, [](Rank& rank) {
      const Array array = array_of(rank, bytes, true);
      for (;;) {
        std::fill(array.begin(), array.end(), std::byte{1});
        static_cast<void>(rank.wait(rank.submit(submission_of(array, array, DType::uint8, Operator::sum))));
      }
      return true;
    });
    Rank rank(memory, 0, in_the_job);
    Mirror mirror(rank);
    const Array array = array_of(rank, bytes, true);
    CHECK(rank.wait(rank.submit(submission_of(array, array, DType::uint8, Operator::sum))).ok());
    std::thread stopper([&, wait = std::chrono::microseconds(chance() % 30'000)] {
      std::this_thread::sleep_for(wait);
      neighbour.stop();
      mirror.end();
      rank.group().fail_all(Status::error(Code::peer_lost, "stopped", 1));
    });
    Status status;
    while (status.ok()) {
      status = rank.wait(rank.submit(submission_of(array, array, DType::uint8, Operator::sum)));
    }
    CHECK(status.code == Code::peer_lost);
    std::fill(array.begin(), array.end(), std::byte{7});
    stopper.join();
    neighbour.go_on();
    std::this_thread::sleep_for(milliseconds(20));
    CHECK(all_are(array, std::byte{7}));
  }
}

}  // namespace

RUN_TESTS()
