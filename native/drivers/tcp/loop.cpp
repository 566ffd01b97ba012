// The thread, its rounds and tasks, and the actions of machines. Links are in loop_links.cpp.
#include "drivers/tcp/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include "reduce/reduce.h"

namespace shoal::tcp {

namespace {

// What epoll reports for the wake-up descriptor; links count from 1.
constexpr LinkId wake_up_id = 0;

constexpr std::size_t events_per_round = 64;

// Follow-ups of a round; what remains waits for the next, after a look at the sockets.
constexpr std::size_t follow_ups_per_round = 1024;

// The same of a round that a caller's thread does: it came for one thing. The loop's thread is woken for the rest.
constexpr std::size_t follow_ups_of_caller = 64;

// The thread looks this often even if nothing happens, so that whoever sets a deadline beyond need not wake it.
constexpr Time longest_sleep = second;

// With so much queued, a link is flushed at once, so that the network works while the machines do.
constexpr std::size_t flush_early_bytes = 128 * 1024;

int checked(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return result;
}

}  // namespace

Loop::Loop(LinkOptions options)
    : options_(options),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "cannot create an epoll descriptor (see `ulimit -n`)")),
      wake_up_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "cannot create an eventfd (see `ulimit -n`)")),
      generation_(os::fork_generation()) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = wake_up_id;
  checked(::epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, wake_up_.number(), &event), "cannot watch an eventfd");
}

Loop::~Loop() { stop(); }

Time Loop::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// --- The thread and its tasks ---

void Loop::start() {
  if (started_.exchange(true)) {
    throw std::logic_error("this loop was started before");
  }
  // Signals are for the application's threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::make_unique<std::thread>([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Loop::stop() {
  if (thread_ == nullptr) {
    return;
  }
  if (generation_ != os::fork_generation()) {
    [[maybe_unused]] const std::thread* forgotten = thread_.release();
    return;
  }
  post([this] { stopping_ = true; });
  thread_->join();
  thread_.reset();
}

bool Loop::post(Task task) {
  bool asleep = false;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return false;
    }
    tasks_.push_back(std::move(task));
    asleep = std::exchange(asleep_, false);
  }
  if (asleep) {
    wake();
  }
  return true;
}

void Loop::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_up_.number(), &one, sizeof one));
}

void Loop::run() {
  ::pthread_setname_np(::pthread_self(), "shoal");
  std::string failure;
  try {
    run_rounds();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  end(!failure.empty());
  if (!failure.empty() && on_failure) {
    on_failure(failure);
  }
}

void Loop::end(bool failed) {
  std::vector<Task> never_run;
  std::vector<Task> rest_of_a_round;
  const std::lock_guard running(running_);
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    never_run.swap(tasks_);
  }
  rest_of_a_round.swap(tasks_at_hand_);
  if (failed) {
    sockets_.clear();  // so that the others hear of it
  }
}

void Loop::run_rounds() {
  std::array<epoll_event, events_per_round> events;
  std::unique_lock running(running_);
  while (!stopping_) {
    const int timeout = prepare_to_wait();
    running.unlock();
    const int count = ::epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), timeout);
    running.lock();
    {
      const std::lock_guard lock(mutex_);
      asleep_ = false;
    }
    if (failure_ != nullptr) {
      std::rethrow_exception(failure_);
    }
    begin_round();
    look_at_links();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u32 == wake_up_id) {
        std::uint64_t ignored = 0;
        static_cast<void>(!::read(wake_up_.number(), &ignored, sizeof ignored));
      } else {
        handle_socket(event.data.u32, event.events);
      }
    }
    finish_round(follow_ups_per_round);
  }
}

// How many milliseconds the thread may sleep.
int Loop::prepare_to_wait() {
  constexpr Time millisecond = second / 1000;
  const Time time = now();
  const Time until = sockets_.empty() ? when_to_run() : std::min(when_to_run(), next_look_);
  const Time wait = std::clamp<Time>(until - time, 0, longest_sleep);
  sleeps_until_ = time + wait;
  const std::lock_guard lock(mutex_);
  asleep_ = wait > 0 && tasks_.empty();
  return asleep_ ? static_cast<int>((wait + millisecond - 1) / millisecond) : 0;
}

// 0: at once.
Time Loop::when_to_run() const {
  if (!sent_.empty() || !follow_ups_.empty() || !to_flush_.empty() || stopping_) {
    return 0;
  }
  Time earliest = never;
  for (const Machine* machine : machines_) {
    earliest = std::min(earliest, machine->deadline());
  }
  return backlogged_.empty() ? earliest : std::min(earliest, next_push_);
}

void Loop::begin_round() {
  const Time time = now();
  for (Machine* machine : machines_) {
    machine->on_time(time);
  }
  {
    const std::lock_guard lock(mutex_);
    tasks_at_hand_.swap(tasks_);
  }
  for (Task& task : tasks_at_hand_) {
    task();
  }
  tasks_at_hand_.clear();
}

void Loop::finish_round(std::size_t most_follow_ups) {
  carry_out_follow_ups(most_follow_ups);
  flush_listed();
  // Most often, that what was queued is sent: no reason for another round.
  carry_out_follow_ups(most_follow_ups);
  push_backlog();
  closed_.clear();
  links_.store(sockets_.size() + memory_.size(), std::memory_order_relaxed);
  if (after_round) {
    after_round();
  }
}

bool Loop::do_or_post(Task task) {
  const std::unique_lock running(running_, std::try_to_lock);
  if (!running.owns_lock() || !started_ || failure_ != nullptr) {
    return post(std::move(task));
  }
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return false;
    }
  }
  do_now(task);
  return true;
}

void Loop::do_now(const Task& task) {
  try {
    begin_round();
    task();
    finish_round(follow_ups_of_caller);
  } catch (...) {
    failure_ = std::current_exception();
    wake_if_asleep();
    return;
  }
  if (when_to_run() < sleeps_until_) {
    wake_if_asleep();
  }
}

void Loop::wake_if_asleep() {
  bool asleep = false;
  {
    const std::lock_guard lock(mutex_);
    asleep = std::exchange(asleep_, false);
  }
  if (asleep) {
    wake();
  }
}

// --- Machines and links ---

void Loop::add(Machine& machine) {
  machines_.push_back(&machine);
  machine.on_time(now());
}

void Loop::remove(Machine& machine) {
  for (auto end = sockets_.begin(); end != sockets_.end();) {
    end = end->second.machine == &machine ? drop_socket(end) : std::next(end);
  }
  std::vector<LinkId> in_memory;
  for (const auto& [link, end] : memory_) {
    if (end.machine == &machine) {
      in_memory.push_back(link);
    }
  }
  std::for_each(in_memory.begin(), in_memory.end(), [this](LinkId link) { drop_memory(link); });
  std::erase_if(follow_ups_, [&](const FollowUp& next) {
    if (next.machine == &machine) {
      give_back(next);
    }
    return next.machine == &machine;
  });
  std::erase_if(sent_, [&](const auto& next) { return next.first == &machine; });
  std::erase(machines_, &machine);
}

LinkId Loop::add_socket(Machine& machine, Socket socket, const LinkOptions& options) {
  const LinkId id = ++last_link_;
  auto link = std::make_unique<Link>(id, std::move(socket), options);
  wait_for(*link, false, EPOLL_CTL_ADD);
  look_within(options.peer_timeout_seconds, now());
  const bool holds_bytes = link->holds_bytes();
  sockets_.emplace(id, SocketEnd{&machine, std::move(link)});
  if (holds_bytes) {
    follow_ups_.push_back({FollowUp::Kind::read, &machine, id});
  }
  return id;
}

std::pair<LinkId, LinkId> Loop::add_pair(Machine& first, Machine& second) {
  const LinkId a = ++last_link_;
  const LinkId b = ++last_link_;
  memory_[a] = {&first, b};
  memory_[b] = {&second, a};
  return {a, b};
}

std::size_t Loop::links_of(const Machine& machine) const {
  const auto is_its = [&](const auto& entry) { return entry.second.machine == &machine; };
  return static_cast<std::size_t>(std::count_if(sockets_.begin(), sockets_.end(), is_its) +
                                  std::count_if(memory_.begin(), memory_.end(), is_its));
}

std::size_t Loop::undelivered_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, end] : sockets_) {
    bytes += end.link->queued_bytes() + static_cast<std::size_t>(end.link->unacknowledged_bytes());
  }
  return bytes;
}

// --- Actions ---

void Loop::send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned,
                std::span<const std::byte> borrowed, Token token) {
  if (const auto end = sockets_.find(link); end != sockets_.end()) {
    end->second.link->queue(header, std::move(owned), borrowed, token);
    list(*end->second.link);
    if (end->second.link->queued_bytes() >= flush_early_bytes && !end->second.link->waits_for_room) {
      flush(end->second);
    }
  } else if (memory_.contains(link)) {
    if (!borrowed.empty()) {
      lend(token);
    }
    follow_ups_.push_back({FollowUp::Kind::deliver, &machine, link, token, header, std::move(owned), borrowed});
  } else {
    tokens_return(&machine, {token});
  }
}

void Loop::detach(Machine& machine, Token token) {
  for (auto& [id, end] : sockets_) {
    if (end.machine == &machine) {
      end.link->detach(token);
    }
  }
  // There may be very many.
  if (!lent_.contains(token)) {
    return;
  }
  for (FollowUp& next : follow_ups_) {
    if (next.kind == FollowUp::Kind::deliver && next.machine == &machine && next.token == token) {
      give_back(next);
      next.owned.insert(next.owned.end(), next.borrowed.begin(), next.borrowed.end());
      next.borrowed = {};
    }
  }
}

void Loop::close(LinkId link) {
  if (const auto end = sockets_.find(link); end != sockets_.end()) {
    drop_socket(end);
  } else {
    drop_memory(link);
  }
}

void Loop::compete(LinkId link, bool on) {
  // Links in memory have nobody beside them.
  if (const auto end = sockets_.find(link); end != sockets_.end()) {
    end->second.link->compete(on);
  }
}

std::uint64_t Loop::retransmissions(LinkId link) const {
  const auto end = sockets_.find(link);
  return end == sockets_.end() ? 0 : end->second.link->retransmissions();
}

void Loop::sum(Machine& machine, const Sum& sum) {
  reduce(sum.destination, sum.sources, sum.count, sum.dtype, sum.op, sum.divisor);
  follow_ups_.push_back({FollowUp::Kind::summed, &machine, 0, sum.token});
}

// --- Counters ---

Loop::Counters Loop::counters() const {
  return {traffic_.bytes_sent.load(std::memory_order_relaxed), traffic_.bytes_received.load(std::memory_order_relaxed),
          links_.load(std::memory_order_relaxed)};
}

}  // namespace shoal::tcp
