// The memory that ranks of a node share: ranks as threads over one mapping, so that ThreadSanitizer sees them, and as
// processes that are killed.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "drivers/shm/memory.h"
#include "drivers/shm/shared_group.h"
#include "protocol/local/flow.h"
#include "protocol/local/mailbox.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;
using std::chrono::milliseconds;

std::vector<float> values_of(std::uint32_t rank, std::size_t count, int round) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((rank + 1) * (i % 97 + 1) + static_cast<std::size_t>(round));
  }
  return values;
}

void check_sum(const std::vector<float>& values, std::uint32_t ranks, int round) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    float sum = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      sum += values_of(rank, i + 1, round)[i];
    }
    CHECK_EQ(values[i], sum);
    i += values.size() / 50;
  }
}

TEST(records_come_in_order_and_whole_however_often_the_ring_turns) {
  Shape shape = small_shape(2);
  shape.mailbox = 8 * 1024;
  const Memory memory(shape);
  RealBells bells(memory);
  std::thread writer([&] {
    MailboxWriter box(memory, 0, bells);
    for (std::size_t i = 0; i < 5000; ++i) {
      const std::vector<std::byte> body(i % 700, static_cast<std::byte>(i));
      const std::vector<std::byte> data(i * 7 % 1500, static_cast<std::byte>(i + 1));
      while (!box.write({RecordKind::open, {}, body, data})) {
        std::this_thread::yield();
      }
    }
  });
  MailboxReader reader(memory, 1, 0, bells);
  for (std::size_t i = 0; i < 5000; ++i) {
    std::optional<Record> record;
    while (!(record = reader.next())) {
      std::this_thread::yield();
    }
    CHECK_EQ(record->body.size(), i % 700);
    CHECK_EQ(record->data.size(), i * 7 % 1500);
    CHECK(std::all_of(record->body.begin(), record->body.end(),
                      [i](std::byte b) { return b == static_cast<std::byte>(i); }));
    CHECK(std::all_of(record->data.begin(), record->data.end(),
                      [i](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
    reader.done();
  }
  writer.join();
}

TEST(a_full_mailbox_has_room_again_when_its_last_reader_is_gone) {
  Shape shape = small_shape(3);
  shape.mailbox = 8 * 1024;
  const Memory memory(shape);
  RealBells bells(memory);
  MailboxWriter box(memory, 0, bells);
  const std::vector<std::byte> body(1000);
  while (box.write({RecordKind::open, {}, body, {}})) {
  }
  MailboxReader reader(memory, 1, 0, bells);
  while (reader.next()) {
    reader.done();
  }
  CHECK(!box.write({RecordKind::open, {}, body, {}}));
  memory.words(2).gone.store(1);
  CHECK(box.write({RecordKind::open, {}, body, {}}));
}

TEST(a_damaged_record_is_refused) {
  const Memory memory(small_shape(2));
  RealBells bells(memory);
  MailboxWriter writer(memory, 0, bells);
  CHECK(writer.write({RecordKind::leave, {}, {}, {}}));
  std::memset(memory.mailbox(0), 0xff, 8);
  MailboxReader reader(memory, 1, 0, bells);
  bool refused = false;
  try {
    static_cast<void>(reader.next());
  } catch (const std::runtime_error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(memory_of_another_size_is_refused) {
  const Memory memory(small_shape(2));
  bool refused = false;
  try {
    const Memory other(os::Descriptor(::dup(memory.descriptor())), small_shape(3));
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(sums_are_right_at_every_size_with_waiting_ranks) {
  for (std::uint32_t ranks : {2U, 3U, 5U}) {
    on_ranks(ranks, small_shape(ranks), [&](Rank& rank) {
      int round = 0;
      for (std::size_t count : {1U, 15U, 16U, 17U, 4096U, 4097U, 5000U, 20'000U, 100'001U}) {
        std::vector<float> values = values_of(rank.rank(), count, ++round);
        CHECK(rank.wait(rank.submit("", values)).ok());
        check_sum(values, ranks, round);
      }
    });
  }
}

TEST(operations_of_any_order_are_matched_by_name_and_carried_out_by_attendants) {
  constexpr std::uint32_t ranks = 3;
  on_ranks(ranks, small_shape(ranks), [&](Rank& rank) {
    std::vector<std::vector<float>> values;
    std::vector<int> order;
    for (int i = 0; i < 40; ++i) {
      values.push_back(values_of(rank.rank(), i % 3 == 0 ? 10U : 3000U * static_cast<std::size_t>(i), i));
      order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(rank.rank()));
    std::vector<std::uint64_t> handles(40);
    for (int i : order) {
      handles[static_cast<std::size_t>(i)] = rank.submit("t" + std::to_string(i), values[static_cast<std::size_t>(i)]);
    }
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK(rank.watch(handles[i]).ok());
      check_sum(values[i], ranks, static_cast<int>(i));
    }
  });
}

// What element `i` of rank `from` is for rank `to`.
float element(std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<float>(100 * from + 10 * to) + static_cast<float>(i % 7);
}

Submission call_of(Collective collective, std::vector<float>& values, std::vector<float>& result) {
  Submission submission;
  submission.collective = collective;
  submission.name = "b";
  submission.dtype = DType::float32;
  submission.shape = {static_cast<std::int64_t>(values.size())};
  submission.input = reinterpret_cast<const std::byte*>(values.data());
  submission.input_bytes = values.size() * sizeof(float);
  submission.output = reinterpret_cast<std::byte*>(result.data());
  submission.output_bytes = result.size() * sizeof(float);
  return submission;
}

TEST(a_gather_brings_what_each_has) {
  for (const std::uint32_t ranks : {2U, 3U, 5U}) {
    on_ranks(ranks, small_shape(ranks), [ranks](Rank& rank) {
      for (const std::size_t count : {0UL, 3UL, 900UL, 5'000UL, 70'001UL}) {
        std::vector<float> values(count * (rank.rank() + 1));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = element(rank.rank(), 0, i);
        }
        std::vector<float> none;
        Submission call = call_of(Collective::all_gather, values, none);
        call.output = nullptr;
        const std::uint64_t handle = rank.submit(std::move(call));
        CHECK(rank.wait(handle).ok());
        std::vector<float> expected;
        for (std::uint32_t from = 0; from < ranks; ++from) {
          for (std::size_t i = 0; i < count * (from + 1); ++i) {
            expected.push_back(element(from, 0, i));
          }
        }
        CHECK(rank.gathered(handle) == expected);
      }
    });
  }
}

TEST(blocks_come_to_whom_they_are_for) {
  for (const std::uint32_t ranks : {2U, 3U, 5U}) {
    on_ranks(ranks, small_shape(ranks), [ranks](Rank& rank) {
      for (const std::size_t count : {0UL, 3UL, 500UL, 5'000UL, 30'001UL}) {
        // One has nothing for the last, and much for itself.
        const auto size = [&](std::uint32_t from, std::uint32_t to) {
          return from == 1 && to + 1 == ranks ? 0 : count * (from + 2 * to + (from == to ? 4 : 1));
        };
        std::vector<float> values;
        std::vector<float> none;
        std::vector<std::int64_t> splits;
        std::vector<float> expected;
        for (std::uint32_t other = 0; other < ranks; ++other) {
          splits.push_back(static_cast<std::int64_t>(size(rank.rank(), other) * sizeof(float)));
          for (std::size_t i = 0; i < size(rank.rank(), other); ++i) {
            values.push_back(element(rank.rank(), other, i));
          }
          for (std::size_t i = 0; i < size(other, rank.rank()); ++i) {
            expected.push_back(element(other, rank.rank(), i));
          }
        }
        Submission call = call_of(Collective::all_to_all, values, none);
        call.output = nullptr;
        call.splits = splits;
        const std::uint64_t handle = rank.submit(std::move(call));
        CHECK(rank.wait(handle).ok());
        CHECK(rank.gathered(handle) == expected);
      }
    });
  }
}

TEST(a_broadcast_comes_from_its_root_only) {
  on_ranks(3, small_shape(3), [](Rank& rank) {
    for (const std::size_t count : {0UL, 3UL, 5'000UL, 70'001UL}) {
      for (std::uint32_t root = 0; root < 3; ++root) {
        std::vector<float> values(count, -1);
        for (std::size_t i = 0; i < count && rank.rank() == root; ++i) {
          values[i] = element(root, 0, i);
        }
        Submission call = call_of(Collective::broadcast, values, values);
        call.root = root;
        if (rank.rank() != root) {
          call.input = nullptr;
          call.input_bytes = 0;
        }
        CHECK(rank.wait(rank.submit(std::move(call))).ok());
        for (std::size_t i = 0; i < count; ++i) {
          CHECK_EQ(values[i], element(root, 0, i));
        }
      }
    }
  });
}

TEST(scattered_sums_are_those_of_each_ranks_rows) {
  for (const std::uint32_t ranks : {2U, 3U, 5U}) {
    on_ranks(ranks, small_shape(ranks), [ranks](Rank& rank) {
      for (const std::size_t count : {0UL, 2UL, 901UL, 5'000UL, 70'001UL}) {
        for (const bool in_place : {false, true}) {
          std::vector<float> values(count);
          for (std::size_t i = 0; i < count; ++i) {
            values[i] = element(rank.rank(), 0, i);
          }
          // The first have one row more, where they cannot be cut evenly.
          const std::size_t first = count / ranks * rank.rank() + std::min<std::size_t>(rank.rank(), count % ranks);
          const std::size_t rows = count / ranks + (rank.rank() < count % ranks ? 1 : 0);
          std::vector<float> result(rows);
          Submission call = call_of(Collective::reduce_scatter, values, result);
          call.op = Operator::sum;
          if (in_place) {
            call.output = reinterpret_cast<std::byte*>(values.data() + first);
          }
          CHECK(rank.wait(rank.submit(std::move(call))).ok());
          for (std::size_t i = 0; i < rows; ++i) {
            float sum = 0;
            for (std::uint32_t from = 0; from < ranks; ++from) {
              sum += element(from, 0, first + i);
            }
            CHECK_EQ(in_place ? values[first + i] : result[i], sum);
          }
        }
      }
    });
  }
}

TEST(a_barrier_is_passed_when_all_have_come) {
  std::atomic<int> come{0};
  on_ranks(3, small_shape(3), [&come](Rank& rank) {
    std::vector<float> none;
    for (int turn = 1; turn <= 50; ++turn) {
      ++come;
      CHECK(rank.wait(rank.submit(call_of(Collective::barrier, none, none))).ok());
      CHECK(come.load() >= 3 * turn);
    }
  });
}

TEST(those_that_disagree_are_told_and_go_on) {
  on_ranks(3, small_shape(3), [](Rank& rank) {
    std::vector<float> values(rank.rank() == 1 ? 20'001 : 20'000);
    const Status status = rank.wait(rank.submit("w", values));
    CHECK(status.code == Code::mismatch);
    CHECK(status.message.find("rank 1 (here)") != std::string::npos);
    const Status other = rank.wait(rank.submit("w", values, rank.rank() == 2 ? Operator::max : Operator::sum));
    CHECK(other.code == Code::mismatch);
    std::vector<float> next(9000, 1);
    CHECK(rank.wait(rank.submit("w", next)).ok());
    CHECK_EQ(next[8999], 3.0F);
  });
}

// Others may still write what is about operations that have ended and been forgotten where the group broke first.
TEST(a_room_that_is_broken_reads_on_and_says_goodbye) {
  on_ranks(3, small_shape(3), [](Rank& rank) {
    std::vector<float> values(50'000, 1);
    std::thread network([&rank] {
      std::this_thread::sleep_for(milliseconds(rank.rank() == 1 ? 0 : 200));
      rank.group().fail_all(Status::error(Code::peer_lost, "somebody is lost"));
    });
    for (int i = 0; i < 50; ++i) {
      static_cast<void>(rank.wait(rank.submit("together", values)));
    }
    network.join();
    rank.group().leave();
    const auto begin = std::chrono::steady_clock::now();
    while (!rank.has_left && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    CHECK(rank.has_left);
  });
}

TEST(an_operation_that_needs_who_has_left_fails_and_says_so) {
  on_ranks(3, small_shape(3), [](Rank& rank) {
    std::vector<float> values(8000, 1);
    CHECK(rank.wait(rank.submit("together", values)).ok());
    if (rank.rank() == 1) {
      rank.group().leave();
      CHECK(rank.has_left);
      return;
    }
    const Status status = rank.wait(rank.submit("without", values));
    CHECK(status.code == Code::peer_left);
    CHECK_EQ(status.rank, 1);
  });
}

TEST(a_name_that_is_none_ends_alone_and_what_follows_goes_on) {
  on_ranks(2, small_shape(2), [](Rank& rank) {
    std::vector<float> values(4, 1);
    for (const std::string& name : {std::string("#"), std::string(10 << 20, 'x')}) {
      CHECK(rank.wait(rank.submit(name, values)).code == Code::failed_on_rank);
    }
    CHECK(rank.wait(rank.submit("a name", values)).ok());
  });
}

TEST(goodbye_waits_for_what_is_open) {
  on_ranks(2, small_shape(2), [](Rank& rank) {
    std::vector<float> values(50'000, 1);
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(200));
    }
    const std::uint64_t handle = rank.submit("last", values);
    rank.group().leave();
    if (rank.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      CHECK(!rank.has_left || rank.done(handle));
    }
    CHECK(rank.watch(handle).ok());
    for (int i = 0; i < 1000 && !rank.has_left; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    CHECK(rank.has_left);
  });
}

// The thread that waits is through with its operation just then, and takes no other.
TEST(what_is_submitted_while_another_thread_ends_its_wait_is_not_left_lying) {
  constexpr int rounds = 5;
  on_ranks(2, small_shape(2), [](Rank& rank) {
    Time longest = 0;
    for (int round = 0; round < rounds; ++round) {
      const std::string number = std::to_string(round);
      std::vector<float> awaited(4, 1);
      std::vector<float> other(4, 1);
      std::uint64_t second_one = 0;
      if (rank.rank() == 0) {
        rank.at_next_finish([&] { std::thread([&] { second_one = rank.submit("second" + number, other); }).join(); });
        CHECK(rank.wait(rank.submit("first" + number, awaited)).ok());
        CHECK(rank.watch(second_one).ok());
      } else {
        std::this_thread::sleep_for(milliseconds(20));  // rank 0 waits
        CHECK(rank.wait(rank.submit("first" + number, awaited)).ok());
        const auto before = std::chrono::steady_clock::now();
        CHECK(rank.wait(rank.submit("second" + number, other)).ok());
        longest += (std::chrono::steady_clock::now() - before).count();
      }
    }
    CHECK(longest < rounds * second / 4);
  });
}

TEST(what_fails_from_outside_ends_all_that_is_open_and_all_that_comes) {
  on_ranks(2, small_shape(2), [](Rank& rank) {
    std::vector<float> values(50'000, 1);
    if (rank.rank() == 1) {
      return;
    }
    const std::uint64_t handle = rank.submit("alone", values);
    std::thread losing([&] {
      std::this_thread::sleep_for(milliseconds(50));
      rank.group().fail_all(Status::error(Code::peer_lost, "rank 1 is gone", 1));
    });
    CHECK(rank.wait(handle).code == Code::peer_lost);
    losing.join();
    CHECK(rank.wait(rank.submit("later", values)).code == Code::peer_lost);
  });
}

// In a process of its own: all-reduces until it is killed.
[[noreturn]] void work_until_killed(const std::shared_ptr<const Memory>& memory, std::uint32_t own, std::size_t count) {
  Rank rank(memory, own);
  std::vector<float> values(count);
  for (;;) {
    std::fill(values.begin(), values.end(), 1.0F);
    static_cast<void>(rank.wait(rank.submit("", values)));
  }
}

Hash128 key_of(std::uint64_t number) {
  Hash128 key;
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

// In a process of its own: records, whose bytes tell which they are, until it is killed.
[[noreturn]] void write_until_killed(const Memory& memory) {
  RealBells bells(memory);
  MailboxWriter box(memory, 1, bells);
  for (std::size_t i = 0;; ++i) {
    const std::vector<std::byte> body(i * 13 % 5000, static_cast<std::byte>(i));
    while (!box.write({RecordKind::open, key_of(i), body, {}})) {
      std::this_thread::yield();
    }
  }
}

TEST(records_of_a_process_that_is_killed_are_whole_or_not_there) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 chance(seed);
  for (int round = 0; round < 50; ++round) {
    const Memory memory(small_shape(2));
    const int descriptor = ::dup(memory.descriptor());
    const pid_t child = ::fork();
    if (child == 0) {
      write_until_killed(Memory(os::Descriptor(descriptor), small_shape(2)));
    }
    ::close(descriptor);
    RealBells bells(memory);
    MailboxReader reader(memory, 0, 1, bells);
    std::size_t read = 0;
    const auto read_all = [&] {
      while (const std::optional<Record> record = reader.next()) {
        CHECK(record->key == key_of(read));
        CHECK_EQ(record->body.size(), read * 13 % 5000);
        CHECK(std::all_of(record->body.begin(), record->body.end(),
                          [read](std::byte b) { return b == static_cast<std::byte>(read); }));
        reader.done();
        ++read;
      }
    };
    const auto over = std::chrono::steady_clock::now() + std::chrono::microseconds(chance() % 20'000);
    while (read == 0 || std::chrono::steady_clock::now() < over) {
      read_all();
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    read_all();
    CHECK(!reader.next());
  }
}

TEST(a_process_that_is_killed_leaves_nothing_locked) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 chance(seed);
  for (int round = 0; round < 20; ++round) {
    // Children made by fork() do not have the memory, so each maps it anew.
    const auto memory = std::make_shared<Memory>(small_shape(3));
    const int descriptor = ::dup(memory->descriptor());
    const std::size_t count = round % 2 == 0 ? 1000 : 100'000;
    std::vector<pid_t> children;
    for (std::uint32_t rank : {1U, 2U}) {
      const pid_t child = ::fork();
      if (child == 0) {
        work_until_killed(std::make_shared<Memory>(os::Descriptor(descriptor), small_shape(3)), rank, count);
      }
      children.push_back(child);
    }
    ::close(descriptor);
    {
      Rank rank(memory, 0);
      std::atomic<bool> over{false};
      std::thread killer([&, wait = milliseconds(5 + chance() % 40)] {
        std::this_thread::sleep_for(wait);
        ::kill(children[chance() % 2], SIGKILL);
        std::this_thread::sleep_for(milliseconds(20));
        rank.group().fail_all(Status::error(Code::peer_lost, "killed", 1));
        over = true;
      });
      Status status;
      std::vector<float> values(count, 1);
      while (status.ok()) {
        std::fill(values.begin(), values.end(), 1.0F);
        status = rank.wait(rank.submit("", values));
        CHECK(!status.ok() || std::all_of(values.begin(), values.end(), [](float value) { return value == 3.0F; }));
      }
      CHECK(status.code == Code::peer_lost);
      killer.join();
      CHECK(over);
    }
    for (pid_t child : children) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
}

}  // namespace

RUN_TESTS()
