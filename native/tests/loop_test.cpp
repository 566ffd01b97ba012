// The TCP driver's loop with stand-in machines: tasks of any thread, time, fairness, its end, and forks.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "os/fork_guard.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;

TEST(sums_are_carried_out_and_reported_later) {
  Side side;
  const std::vector<float> a{1, 2, 3};
  const std::vector<float> b{10, 20, 30};
  std::vector<float> result(3);
  side.loop.start();
  side.loop.call([&] {
    Sum sum;
    sum.destination = reinterpret_cast<std::byte*>(result.data());
    sum.sources = {reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data())};
    sum.count = 3;
    sum.dtype = DType::float32;
    sum.op = Operator::sum;
    sum.token = 8;
    side.machine.world.sum(sum);
    CHECK(side.machine.summed.empty());
  });
  side.until([&] { return side.machine.summed == std::vector<Token>{8}; });
  CHECK(result == (std::vector<float>{11, 22, 33}));
}

TEST(a_socket_that_cannot_be_watched_leaves_no_link_and_no_descriptor) {
  Side side;
  const int unwatchable = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);  // as epoll refuses files
  CHECK(unwatchable >= 0);
  bool refused = false;
  try {
    side.loop.add_socket(side.machine, tcp::Socket(unwatchable));
  } catch (const std::system_error&) {
    refused = true;
  }
  CHECK(refused);
  CHECK_EQ(side.loop.links_of(side.machine), 0U);
  CHECK(::fcntl(unwatchable, F_GETFD) < 0);
}

TEST(deadlines_are_kept_without_other_events) {
  Side side;
  side.loop.start();
  const Time wanted = Loop::now() + second / 50;
  side.loop.call([&] { side.machine.wanted = wanted; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  side.until([&] { return side.machine.alarms == 1; });
  side.loop.stop();
  CHECK(side.machine.time >= wanted);
}

TEST(tasks_of_many_threads_all_run_each_thread_in_order) {
  Side side;
  side.loop.start();
  constexpr int threads = 4;
  constexpr int tasks = 5000;
  std::vector<std::vector<int>> ran(threads);
  std::vector<std::thread> posters;
  for (int t = 0; t < threads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < tasks; ++i) {
        CHECK(side.loop.post([&, t, i] { ran[static_cast<std::size_t>(t)].push_back(i); }));
        if (i % 1000 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the loop fall asleep
        }
      }
    });
  }
  for (std::thread& poster : posters) {
    poster.join();
  }
  side.until(
      [&] { return std::all_of(ran.begin(), ran.end(), [](const auto& list) { return list.size() == tasks; }); });
  for (const auto& list : ran) {
    CHECK(std::is_sorted(list.begin(), list.end()));
  }
}

// Tries until the loop sleeps: then a task is done by the thread that brings it.
void do_here(Loop& loop, const std::function<void()>& task) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (bool here = false; !here;) {
    std::promise<bool> done;
    CHECK(loop.do_or_post([&, caller = std::this_thread::get_id()] {
      here = std::this_thread::get_id() == caller;
      if (here) {
        task();
      }
      done.set_value(true);
    }));
    CHECK(done.get_future().get());
    CHECK(std::chrono::steady_clock::now() < deadline);
  }
}

TEST(a_sleeping_loop_lets_the_caller_do_its_task_and_what_follows_from_it) {
  InMemory side;
  const auto [ours, theirs] = local_pair();
  const Descriptor raw(theirs);
  const LinkId link = side.loop.add_socket(side.machine, Descriptor(ours));
  side.loop.start();
  do_here(side.loop, [&] {
    side.machine.send(link, pattern(10, 1), {}, 1);
    side.machine.send(side.here, pattern(5, 1), {}, 2);
  });
  // Nothing had to wait for the loop's thread.
  side.loop.call([&] {
    CHECK_EQ(side.other.whole_frames, 1u);
    CHECK_EQ(side.machine.sent.size(), 2u);
  });
  Bytes received(wire::header_bytes + 10);
  CHECK_EQ(::recv(raw.number(), received.data(), received.size(), MSG_WAITALL), static_cast<ssize_t>(received.size()));
}

TEST(more_than_a_caller_does_is_left_to_the_loop) {
  InMemory side;
  side.loop.start();
  do_here(side.loop, [&] {
    for (Token i = 1; i <= 5000; ++i) {
      side.machine.send(side.here, {}, {}, i);
    }
  });
  side.until([&] { return side.other.whole_frames == 5000 && side.machine.sent.size() == 5000; });
}

TEST(a_deadline_that_a_caller_sets_is_kept) {
  Side side;
  side.loop.start();
  Time wanted = 0;
  do_here(side.loop, [&] { side.machine.wanted = wanted = Loop::now() + second / 50; });
  side.until([&] { return side.machine.alarms == 1; });
  side.loop.stop();
  CHECK(side.machine.time >= wanted);
}

TEST(tasks_of_many_threads_run_in_order_whoever_does_them) {
  Side side;
  side.loop.start();
  constexpr int threads = 4;
  constexpr int tasks = 5000;
  std::vector<std::vector<int>> ran(threads);
  std::vector<std::thread> posters;
  for (int t = 0; t < threads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < tasks; ++i) {
        const auto task = [&, t, i] { ran[static_cast<std::size_t>(t)].push_back(i); };
        CHECK(i % 3 == 0 ? side.loop.post(task) : side.loop.do_or_post(task));
        if (i % 1000 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the loop fall asleep
        }
      }
    });
  }
  for (std::thread& poster : posters) {
    poster.join();
  }
  side.until(
      [&] { return std::all_of(ran.begin(), ran.end(), [](const auto& list) { return list.size() == tasks; }); });
  for (const auto& list : ran) {
    CHECK(std::is_sorted(list.begin(), list.end()));
  }
}

TEST(a_loop_fails_by_what_a_caller_did_for_it) {
  RawPeer side;
  std::string why;
  side.loop.on_failure = [&](const std::string& text) { why = text; };
  side.loop.start();
  // Whoever does it.
  CHECK(side.loop.do_or_post([] { throw std::runtime_error("no memory"); }));
  char byte;
  CHECK_EQ(::recv(side.raw, &byte, 1, 0), 0);
  side.loop.stop();
  CHECK_EQ(why, "no memory");
  CHECK(!side.loop.do_or_post([] {}));
}

TEST(a_stopped_loop_takes_no_tasks_and_says_so) {
  Side side;
  side.loop.start();
  side.loop.stop();
  side.loop.stop();
  CHECK(!side.loop.post([] {}));
  CHECK(!side.loop.do_or_post([] {}));
  bool refused = false;
  try {
    side.loop.call([] { return 1; });
  } catch (const std::runtime_error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(what_was_to_follow_a_task_that_fails_is_told_that_it_never_will) {
  Loop loop;
  loop.start();
  std::atomic<bool> both_are_there{false};
  // In one batch with the next two.
  loop.post([&] {
    while (!both_are_there) {
      std::this_thread::yield();
    }
  });
  loop.post([] { throw std::runtime_error("no memory"); });
  std::thread caller([&] {
    bool ended = false;
    try {
      loop.call([] {});
    } catch (const std::runtime_error&) {
      ended = true;
    }
    CHECK(ended);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  both_are_there = true;
  caller.join();
}

TEST(a_loop_that_fails_closes_its_links_and_tells) {
  RawPeer side;
  std::string why;
  side.loop.on_failure = [&](const std::string& text) { why = text; };
  side.loop.start();
  side.loop.post([] { throw std::runtime_error("no memory"); });
  char byte;
  CHECK_EQ(::recv(side.raw, &byte, 1, 0), 0);
  side.loop.stop();
  CHECK_EQ(why, "no memory");
}

TEST(a_machine_that_is_removed_hears_nothing_more) {
  RawPeer side;
  side.loop.start();
  side.loop.call([&] {
    side.machine.send(side.link, {}, {}, 1);
    side.loop.remove(side.machine);
  });
  char byte;
  CHECK_EQ(::recv(side.raw, &byte, 1, 0), 0);
  side.until([&] { return side.loop.counters().links == 0; });
  CHECK(side.machine.sent.empty());
  CHECK(side.machine.lost.empty());
}

TEST(one_busy_link_does_not_starve_another) {
  Side side;
  const auto [busy, busy_peer] = local_pair();
  const auto [quiet, quiet_peer] = local_pair();
  std::size_t busy_frames_before = 0;
  std::size_t quiet_frames = 0;
  const LinkId busy_link = side.loop.add_socket(side.machine, Descriptor(busy));
  side.loop.add_socket(side.machine, Descriptor(quiet));
  side.machine.when_payload = [&](const Frame& frame) {
    if (frame.link != busy_link) {
      ++quiet_frames;
    } else if (quiet_frames == 0) {
      ++busy_frames_before;
    }
    side.machine.frames.clear();
    return Status{};
  };
  side.loop.start();
  std::atomic<bool> enough{false};
  std::thread writer([&, socket = busy_peer] {
    Bytes bytes = header_of(16384);
    bytes.resize(bytes.size() + 16384);
    while (!enough && ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  side.until([&] { return busy_frames_before > 0; });
  write_raw(quiet_peer, header_of(0));
  side.until([&] { return quiet_frames == 1; });
  enough = true;
  writer.join();
  ::close(busy_peer);
  ::close(quiet_peer);
}

TEST(a_forked_child_holds_no_descriptor_and_leaves_the_parent_in_peace) {
  RawPeer side;
  const int ours = 200;  // a number that nothing else in this process takes
  const auto [first, second] = local_pair();
  CHECK_EQ(::dup2(first, ours), ours);
  ::close(first);
  side.loop.add_socket(side.machine, Descriptor(ours));
  side.loop.start();
  const os::ForkGuard<int> property(std::make_unique<int>(1));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool closed = ::fcntl(ours, F_GETFD) == -1;
    bool refused = false;
    try {
      static_cast<void>(*property.operator->());
    } catch (const std::runtime_error&) {
      refused = true;
    }
    side.loop.stop();  // returns, although there is no thread
    ::_exit(closed && refused ? 0 : 1);
  }
  CHECK(child > 0);
  int status = -1;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
  write_raw(side.raw, header_of(0));
  side.until([&] { return side.machine.whole_frames == 1 && side.machine.lost.empty(); });
  ::close(second);
}

}  // namespace

RUN_TESTS()
