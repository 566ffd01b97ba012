// Threads that wait and do a loop's rounds meanwhile (Loop::rounds()): what they and the loop's thread leave to each
// other.
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "drivers/common/rounds.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;

using std::chrono::milliseconds;

constexpr milliseconds long_enough{100};
// The loop's thread looks once a second by itself: what takes less was no accident.
constexpr milliseconds before_it_looks{900};

// Two loops with a link between them. Whatever the other one gets it sends back.
struct Echo {
  Echo() {
    const auto [ours, theirs] = tcp_pair();
    link = side.loop.add_socket(side.machine, Descriptor(ours));
    const LinkId others = other.loop.add_socket(other.machine, Descriptor(theirs));
    other.machine.when_payload = [this, others](const Frame& frame) {
      other.machine.send(others, Bytes(frame.payload.size()));
      return Status{};
    };
    side.machine.when_payload = [this](const Frame&) {
      frames_by_helper += std::this_thread::get_id() == helper ? 1 : 0;
      ++echoes;
      return Status{};
    };
    side.loop.on_failure = [this](const std::string&) { ++failures; };
    side.loop.start();
    other.loop.start();
    rounds = side.loop.rounds().lock();
  }

  void send() {
    CHECK(side.loop.do_or_post([this] { side.machine.send(link, pattern(10, 1)); }));
  }
  void help_until(int count) {
    rounds->help([this, count] { return echoes >= count; }, long_enough);
  }
  // Without a task, which would wake the loop's thread.
  void wait_for(int count) {
    const auto deadline = std::chrono::steady_clock::now() + before_it_looks;
    while (echoes < count) {
      CHECK(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
  }

  Side side;
  Side other;
  LinkId link = 0;
  std::atomic<int> echoes{0};
  std::atomic<int> frames_by_helper{0};
  std::atomic<int> failures{0};
  const std::thread::id helper = std::this_thread::get_id();
  std::shared_ptr<Rounds> rounds;
};

TEST(a_thread_that_waits_reads_what_it_waits_for) {
  Echo echo;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int sent = 0;
  while (echo.frames_by_helper < 20) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    echo.send();
    echo.help_until(++sent);
    echo.wait_for(sent);
  }
}

// Also at the moment at which the loop's thread goes to rest, or comes back.
TEST(the_loops_thread_reads_what_comes_when_nobody_helps) {
  Echo echo;
  int sent = 0;
  for (int round = 0; round < 400; ++round) {
    echo.send();
    echo.help_until(++sent);
    if (round % 2 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(round));
    }
    echo.send();
    echo.wait_for(++sent);
  }
}

// Well before the loop's thread would look by itself after it was helped.
TEST(what_nobody_waits_for_is_left_to_the_loops_thread_at_once) {
  Echo echo;
  int sent = 0;
  for (int round = 0; round < 100; ++round) {
    echo.send();
    echo.help_until(++sent);
    echo.send();
    echo.rounds->leave_to_the_loop();
    echo.wait_for(++sent);
  }
}

TEST(a_deadline_that_comes_when_nobody_helps_any_more_is_kept) {
  Echo echo;
  for (int round = 0; round < 50; ++round) {
    echo.send();
    CHECK(echo.side.loop.do_or_post([&] { echo.side.machine.wanted = Loop::now() + second / 10000 * (round % 8); }));
    echo.help_until(round + 1);
    echo.wait_for(round + 1);
    const auto kept_by = std::chrono::steady_clock::now() + before_it_looks;
    std::this_thread::sleep_for(milliseconds(2));
    echo.side.until([&] { return echo.side.machine.alarms == round + 1; });
    CHECK(std::chrono::steady_clock::now() < kept_by);
  }
}

TEST(tasks_of_many_threads_that_help_all_run) {
  Echo echo;
  constexpr int threads = 3;
  constexpr int tasks = 1000;
  std::vector<std::atomic<int>> ran(threads);
  std::vector<std::thread> callers;
  for (std::size_t t = 0; t < threads; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 1; i <= tasks; ++i) {
        const auto task = [&, t] {
          ++ran[t];
          echo.side.machine.send(echo.link, pattern(3, 1));
        };
        CHECK(i % 3 == 0 ? echo.side.loop.post(task) : echo.side.loop.do_or_post(task));
        echo.rounds->help([&, t, i] { return ran[t] >= i; }, long_enough);
        const auto deadline = std::chrono::steady_clock::now() + before_it_looks;
        while (ran[t] < i) {
          CHECK(std::chrono::steady_clock::now() < deadline);
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  echo.wait_for(threads * tasks);
}

TEST(a_loop_ends_while_a_thread_helps) {
  for (int round = 0; round < 20; ++round) {
    std::shared_ptr<Rounds> rounds;
    std::atomic<bool> over{false};
    std::thread helper;
    {
      Echo echo;
      rounds = echo.rounds;
      helper = std::thread([&] {
        while (!over) {
          rounds->help([] { return false; }, long_enough);
        }
      });
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      echo.side.loop.stop();
    }
    rounds->help([] { return false; }, long_enough);  // there is no loop
    over = true;
    helper.join();
  }
}

TEST(a_loop_that_fails_while_a_thread_helps_tells_it_once) {
  Echo echo;
  echo.side.loop.call(
      [&] { echo.side.machine.when_payload = [](const Frame&) -> Status { throw std::runtime_error("no memory"); }; });
  echo.send();
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (echo.failures == 0) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    echo.rounds->help([] { return false; }, long_enough);
  }
  CHECK(!echo.side.loop.post([] {}));
  echo.side.loop.stop();
  CHECK_EQ(echo.failures.load(), 1);
}

}  // namespace

RUN_TESTS()
