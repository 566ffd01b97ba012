// One thread that runs machines: it waits for sockets, for deadlines and for tasks of other threads, and carries out
// what the machines ask for.
//
// A round, in order: the time, tasks, what arrived on sockets, follow-ups (sums, sent tokens, links in memory),
// writing. No action calls a machine back from within its own call: the events that it causes are follow-ups
// (drivers/common/follow_ups.h), which wait until the machine has returned.
//
// While the loop sleeps, another thread with a task does a round itself (do_or_post()), without a look at the sockets.
// One that waits for a short while does them all (help()), and the loop's thread rests: docs/decisions/callers.md. So
// the machines belong to whoever holds `running_`.
//
// A link belongs to one machine and has one of two forms: a socket (sockets.h), or one end of a pair in memory, for
// machines of one process (drivers/common/memory_links.h). Both keep the contract in protocol/machine.h. Tokens always
// come back, also for frames that were thrown away.
//
//   No link is both a socket and in memory. While the thread sleeps, it is woken for whatever is due before
//   sleeps_until_.
//
// Threads: post(), do_or_post(), call(), counters() and what rounds() gives may be called by any thread; everything
// else from within a round, or by one thread while the loop does not run.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "drivers/common/connection.h"
#include "drivers/common/follow_ups.h"
#include "drivers/common/memory_links.h"
#include "drivers/common/rounds.h"
#include "drivers/common/sums.h"
#include "drivers/tcp/clock.h"
#include "drivers/tcp/link.h"
#include "drivers/tcp/socket.h"
#include "drivers/tcp/sockets.h"
#include "os/descriptor.h"
#include "protocol/machine.h"

namespace shoal::tcp {

class Loop final {
 public:
  using Task = std::function<void()>;

  struct Counters {
    std::uint64_t bytes_sent = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t links = 0;
  };

  // Throws std::system_error when the operating system has no descriptors left.
  explicit Loop(LinkOptions options = {});
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  void start();
  // Runs the tasks posted so far, then ends the thread. May be called again.
  void stop();

  // The task runs in a round, after all that were posted before. False: the loop has ended, so it never runs.
  bool post(Task task);

  // The same for a short task that does not wait. If the loop has nothing to do at the moment, the calling thread
  // carries it out before it returns, and sends what it leads to.
  bool do_or_post(Task task);

  // For threads that wait; does nothing once the loop has ended.
  std::weak_ptr<Rounds> rounds() const;

  // Runs `function` on the loop's thread and waits for its result; at once if the loop has not been started.
  template <class Function>
  auto call(Function function) -> std::invoke_result_t<Function>;

  void add(Machine& machine);
  // Closes the machine's links without telling it, and forgets it. Not from within a machine's call.
  void remove(Machine& machine);

  // Takes over a connection of a kind that it knows: a tcp::Socket. Throws std::invalid_argument for others,
  // std::system_error when the kernel cannot watch it; then there is no link, and the connection is closed.
  LinkId add_link(Machine& machine, Connection connection) {
    return add_link(machine, std::move(connection), options_);
  }
  LinkId add_link(Machine& machine, Connection connection, const LinkOptions& options);
  // The same for a link by which the liveness of the other host is judged.
  LinkId add_control_link(Machine& machine, Connection connection) {
    return add_link(machine, std::move(connection), {options_.peer_timeout_seconds, true});
  }
  LinkId add_socket(Machine& machine, Socket socket) { return add_socket(machine, std::move(socket), options_); }
  LinkId add_socket(Machine& machine, Socket socket, const LinkOptions& options);
  // The ends belong to the first and the second machine.
  std::pair<LinkId, LinkId> add_pair(Machine& first, Machine& second);
  std::size_t links_of(const Machine& machine) const { return sockets_.count(machine) + memory_.count(machine); }
  // Rises whenever a link goes: tells when it is worth asking links_of().
  std::uint64_t links_gone() const { return sockets_.gone() + memory_.gone(); }
  // Bytes that were not handed to the kernel yet, or that the peers' kernels have not acknowledged.
  std::size_t undelivered_bytes() const { return sockets_.undelivered_bytes(); }

  void send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token);
  void detach(Machine& machine, Token token);
  void close(LinkId link);
  // No effect on links in memory.
  void compete(LinkId link, bool on) { sockets_.compete(link, on); }
  std::uint64_t retransmissions(LinkId link) const { return sockets_.retransmissions(link); }
  void sum(Machine& machine, const Sum& sum);

  // Called at the end of every round, by the thread that did it. Set before start().
  std::function<void()> after_round;
  // Called on the loop's thread when it ends by an exception, such as std::bad_alloc. Set before start().
  std::function<void(const std::string& why)> on_failure;

  // Within a round: which one it is, from 1. What is sent in a round is written at its end.
  std::uint64_t round() const { return round_; }
  Counters counters() const;
  static Time now() { return tcp::now(); }

 private:
  class Helpers;

  void run();
  void run_rounds();
  void run_round(std::span<const epoll_event> events);
  void end(bool failed);
  int prepare_to_wait();
  void begin_round();
  void finish_round(std::size_t most_follow_ups);
  void do_now(const Task& task);
  Time when_to_run() const;
  void help(const std::function<bool()>& enough, Time longest);
  bool begin_to_help();
  bool do_rounds(std::unique_lock<std::mutex>& running, const std::function<bool()>& enough, Time until);
  bool sleep_on_sockets(Time longest) const;
  void end_help(bool well, bool is_interrupted);
  bool rest_while_helped();
  void end_rest();
  bool call_the_thread();
  void wake_if_asleep();
  void wake_helper();
  void carry_out_follow_ups(std::size_t most);
  void carry_out(const FollowUp& next);
  void check() const;
  void wake();

  const LinkOptions options_;
  os::Descriptor epoll_;
  os::Descriptor wake_up_;
  // A pointer, so that a forked child can forget a thread that does not exist there.
  std::unique_ptr<std::thread> thread_;
  std::atomic<bool> started_{false};  // stays true after stop()
  const std::uint64_t generation_;

  std::mutex mutex_;
  std::vector<Task> tasks_;  // guarded by mutex_
  bool asleep_ = false;      // guarded by mutex_: a task must wake whoever does the rounds
  bool ended_ = false;       // guarded by mutex_
  // Guarded by mutex_: whether a thread helps; whether the loop's is not to rest after it; until when that leaves it to
  // the next one; whether it rests for one of these reasons; of so many threads that could help none does, and after
  // the next vain help of how many.
  bool helped_ = false;
  bool wanted_ = false;
  Time helped_until_ = 0;
  bool rests_ = false;
  int without_help_ = 0;
  int pause_ = 0;
  std::condition_variable rest_is_over_;

  // Held throughout a round. Everything below is guarded by it, from start() on.
  std::mutex running_;

  std::uint64_t round_ = 0;
  bool stopping_ = false;
  Time sleeps_until_ = 0;       // when the thread wakes up by itself
  std::exception_ptr failure_;  // of a round that another thread did; ends the loop
  std::vector<Task> tasks_at_hand_;
  std::vector<Machine*> machines_;
  LinkId last_link_ = 0;
  FollowUps follow_ups_;
  MemoryLinks memory_{follow_ups_};
  Sockets sockets_{epoll_.number(), follow_ups_};

  std::atomic<std::uint64_t> links_{0};
  const std::shared_ptr<Helpers> helpers_;
};

// The world of one machine on a loop: Base is CoordinatorWorld, ServerWorld or WorkerWorld.
template <class Base>
class OnLoop : public Base {
 public:
  explicit OnLoop(Loop& loop) : loop_(loop) {}
  // Before the machine's first event.
  void bind(Machine& machine) { machine_ = &machine; }

  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token) override {
    loop_.send(*machine_, link, header, std::move(owned), borrowed, token);
  }
  void detach(Token token) override { loop_.detach(*machine_, token); }
  void close(LinkId link) override { loop_.close(link); }
  void compete(LinkId link, bool on) override { loop_.compete(link, on); }

 protected:
  Loop& loop_;
  Machine* machine_ = nullptr;
};

class ServerOnLoop final : public OnLoop<ServerWorld> {
 public:
  using OnLoop::OnLoop;
  void sum(Sum sum) override { loop_.sum(*machine_, sum); }
};

template <class Function>
auto Loop::call(Function function) -> std::invoke_result_t<Function> {
  using Result = std::invoke_result_t<Function>;
  if (!started_) {
    return function();
  }
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(function));
  std::future<Result> result = task->get_future();
  // A task is run, or thrown away with the loop, which breaks its promise: the wait ends in any case.
  if (post([task] { (*task)(); })) {
    task.reset();
    try {
      return result.get();
    } catch (const std::future_error&) {
    }
  }
  throw std::runtime_error("Shoal's thread has ended; call shoal.shutdown() and shoal.init() to begin anew");
}

}  // namespace shoal::tcp
