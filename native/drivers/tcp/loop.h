// One thread that brings machines to life: it waits for sockets, for time and for tasks of other threads, and carries
// out what the machines ask for.
//
// A round, in order: the time, tasks, what arrived on sockets, follow-ups (sums, sent tokens, links in memory), and
// what is to be written. Nothing that a machine asks for calls it back from within its own call: what follows from
// an action waits in `follow_ups_` until the machine has returned.
//
// Another thread that has a task for a loop that sleeps does such a round itself (do_or_post()), without asking which
// sockets have something: docs/decisions/callers.md. So the machines belong to whoever holds `running_`.
//
// A link belongs to one machine and has one of two forms: a socket, or one end of a pair in memory, for machines of one
// process. Both keep the contract in protocol/machine.h. Tokens always come back, also for frames that were thrown
// away.
//
// Threads: post(), do_or_post(), call() and counters() may be called by any; everything else from within a round, or by
// any one thread while the loop does not run.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/tcp/link.h"
#include "drivers/tcp/socket.h"
#include "os/descriptor.h"
#include "protocol/machine.h"

namespace shoal::tcp {

class Loop final : private Receiver {
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
  ~Loop() override;

  void start();
  // Runs the tasks posted so far, then ends the thread. May be called again.
  void stop();

  // The task runs in a round, after all that were posted before. False: the loop has ended, it never will.
  bool post(Task task);

  // The same for a task that is short and does not wait: if the loop has nothing to do at the moment, the calling
  // thread carries it out before it returns, and sends what follows from it.
  bool do_or_post(Task task);

  // Runs `function` on the loop's thread and waits for its result; at once if the loop has not been started.
  template <class Function>
  auto call(Function function) -> std::invoke_result_t<Function>;

  void add(Machine& machine);
  // Closes the machine's links without telling it, and forgets it. Not from within a machine's call.
  void remove(Machine& machine);

  // Throws std::system_error when the kernel cannot watch it; then there is no link, and the socket is closed.
  LinkId add_socket(Machine& machine, Socket socket) { return add_socket(machine, std::move(socket), options_); }
  LinkId add_socket(Machine& machine, Socket socket, const LinkOptions& options);
  // Options for a link on which the liveness of the other host is judged.
  LinkOptions control_options() const { return {options_.peer_timeout_seconds, true}; }
  // The ends belong to the first and the second machine.
  std::pair<LinkId, LinkId> add_pair(Machine& first, Machine& second);
  std::size_t links_of(const Machine& machine) const;
  // Rises whenever a link goes: tells when it is worth asking links_of().
  std::uint64_t links_gone() const { return links_gone_; }
  // Bytes that were not handed to the kernel yet, or that the peers' kernels have not acknowledged.
  std::size_t undelivered_bytes() const;

  void send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token);
  void detach(Machine& machine, Token token);
  void close(LinkId link);
  void compete(LinkId link, bool on);
  std::uint64_t retransmissions(LinkId link) const;
  void sum(Machine& machine, const Sum& sum);

  // Called at the end of every round, by the thread that did it. Set before start().
  std::function<void()> after_round;
  // Called on the loop's thread when it ends by an exception, as when memory is used up. Set before start().
  std::function<void(const std::string& why)> on_failure;

  Counters counters() const;
  static Time now();

 private:
  struct SocketEnd {
    Machine* machine;
    std::unique_ptr<Link> link;
  };
  struct MemoryEnd {
    Machine* machine;
    LinkId other;
  };
  struct FollowUp {
    enum class Kind { summed, deliver, other_end_closed, read };
    Kind kind;
    Machine* machine;  // whose event it is; of a delivery: the sender
    LinkId link = 0;   // of a delivery: the sender's end
    Token token = 0;
    wire::Header header{};
    Bytes owned{};
    std::span<const std::byte> borrowed{};
  };

  Placement frame_begins(LinkId link, const wire::Header& header) override;
  Buffer spare(std::size_t bytes) override;
  Status frame_ends(LinkId link) override;

  void run();
  void run_rounds();
  void end(bool failed);
  int prepare_to_wait();
  void begin_round();
  void finish_round(std::size_t most_follow_ups);
  void do_now(const Task& task);
  Time when_to_run() const;
  void wake_if_asleep();
  void handle_socket(LinkId link, std::uint32_t events);
  void receive(LinkId link);
  void carry_out_follow_ups(std::size_t most);
  void carry_out(FollowUp& next);
  void deliver(FollowUp& frame);
  void lend(Token token) { ++lent_[token]; }
  void give_back(const FollowUp& frame);
  void flush_listed();
  void flush(SocketEnd& end);
  void list(Link& link);
  void push_backlog();
  void look_at_links();
  void look_within(int peer_timeout_seconds, Time time);
  void lose_socket(LinkId link, Status why);  // by value: it may be the link's own
  void lose_memory(LinkId link, const Status& why);
  std::unordered_map<LinkId, SocketEnd>::iterator drop_socket(std::unordered_map<LinkId, SocketEnd>::iterator end);
  void drop_memory(LinkId link);
  void tokens_return(Machine* machine, const std::vector<Token>& tokens);
  void wait_for(Link& link, bool room, int operation);
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
  bool asleep_ = false;      // guarded by mutex_: a task must wake the thread
  bool ended_ = false;       // guarded by mutex_

  // Held throughout a round. Everything below is guarded by it, from start() on.
  std::mutex running_;

  bool stopping_ = false;
  Time sleeps_until_ = 0;       // when the thread looks again, if nobody wakes it
  std::exception_ptr failure_;  // of a round that another thread did; ends the loop
  std::vector<Task> tasks_at_hand_;
  std::vector<Machine*> machines_;
  std::unordered_map<LinkId, SocketEnd> sockets_;
  std::unordered_map<LinkId, MemoryEnd> memory_;
  std::vector<std::unique_ptr<Link>> closed_;  // until the end of the round: one of them may be on the stack
  std::deque<FollowUp> follow_ups_;
  std::deque<std::pair<Machine*, Token>> sent_;  // before all follow-ups
  std::unordered_map<Token, std::size_t> lent_;  // of follow-ups: how many have bytes that are not theirs
  std::vector<LinkId> to_flush_;
  std::vector<LinkId> backlogged_;  // links whose bytes the kernel has taken and not sent
  Time next_push_ = 0;
  Time next_look_ = never;  // for links whose other host is silent
  LinkId last_link_ = 0;
  std::uint64_t links_gone_ = 0;
  Machine* receiving_ = nullptr;  // whose socket is being read

  LinkCounters traffic_;
  std::atomic<std::uint64_t> links_{0};
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
