#include "drivers/tcp/loop.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <shared_mutex>
#include <system_error>

#include "drivers/common/checked.h"
#include "os/thread.h"

namespace shoal::tcp {

namespace {

// What epoll reports for the wake-up descriptor; links count from 1.
constexpr LinkId wake_up_id = 0;

constexpr std::size_t events_per_round = 64;

// Follow-ups of a round; what remains waits for the next, after a look at the sockets.
constexpr std::size_t follow_ups_per_round = 1024;

// The same of a round that a caller's thread does: it came for one thing. The loop's thread is woken for the rest.
constexpr std::size_t follow_ups_of_caller = 64;

// Who helps does so for so long at most. Operations that take longer gain nothing by it.
constexpr Time longest_help = second / 2000;
// For less it is not worth while to send the loop's thread to rest.
constexpr Time shortest_help = second / 20000;
// It looks at the sockets so often before it sleeps on them, and lets others have the processor between two looks.
constexpr int looks_before_sleep = 50;
// So long after one that has helped the loop's thread leaves the sockets to the next: a program that waits for one
// operation after the other calls the next one before that.
constexpr Time until_next_help = second / 5000;
// So many threads at most wait without helping after some that have helped in vain: twice as many each time.
constexpr int longest_pause = 256;

// The thread wakes up this often even if nothing happens, so that setting a later deadline need not wake it.
constexpr Time longest_sleep = second;

int checked(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return result;
}

}  // namespace

// What threads that wait hold on to, longer than the loop perhaps.
class Loop::Helpers final : public Rounds {
 public:
  explicit Helpers(Loop& loop) : loop_(&loop) {}

  void help(const std::function<bool()>& enough, std::chrono::nanoseconds longest) override {
    const std::shared_lock not_while_closing(mutex_, std::try_to_lock);
    if (not_while_closing.owns_lock() && loop_ != nullptr) {
      loop_->help(enough, longest.count());
    }
  }
  void leave_to_the_loop() override {
    const std::shared_lock not_while_closing(mutex_, std::try_to_lock);
    if (not_while_closing.owns_lock() && loop_ != nullptr) {
      loop_->end_rest();
    }
  }
  // Waits for those that help.
  void close() {
    const std::unique_lock lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::shared_mutex mutex_;
  Loop* loop_;  // guarded by mutex_
};

Loop::Loop(LinkOptions options)
    : options_(options),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "cannot create an epoll descriptor (see `ulimit -n`)")),
      wake_up_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "cannot create an eventfd (see `ulimit -n`)")),
      generation_(os::fork_generation()),
      helpers_(std::make_shared<Helpers>(*this)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = wake_up_id;
  checked(::epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, wake_up_.number(), &event), "cannot watch an eventfd");
}

Loop::~Loop() {
  stop();
  if (generation_ == os::fork_generation()) {
    helpers_->close();
  }
}

// --- The thread and its tasks ---

void Loop::start() {
  if (started_.exchange(true)) {
    throw std::logic_error("this loop was started before");
  }
  thread_ = std::make_unique<std::thread>(os::start_thread([this] { run(); }));
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
  helpers_->close();
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
    asleep = call_the_thread();
  }
  if (asleep) {
    wake();
  }
  return true;
}

// With mutex_ held. True: it sleeps on the sockets, and wake() is to be called.
bool Loop::call_the_thread() {
  if (rests_ && !helped_) {
    helped_until_ = 0;
    rest_is_over_.notify_one();
    return false;
  }
  return std::exchange(asleep_, false);
}

void Loop::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_up_.number(), &one, sizeof one));
}

void Loop::run() {
  ::pthread_setname_np(::pthread_self(), "shoal");
  std::optional<std::string> failure;
  try {
    run_rounds();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  end(failure.has_value());
  if (failure && on_failure) {
    on_failure(*failure);
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
    const int count = rest_while_helped()
                          ? 0
                          : ::epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), timeout);
    running.lock();
    {
      const std::lock_guard lock(mutex_);
      asleep_ = false;
    }
    if (failure_ == nullptr) {
      run_round(std::span(events).first(static_cast<std::size_t>(std::max(count, 0))));
      wake_helper();
    }
    if (failure_ != nullptr) {
      std::rethrow_exception(failure_);
    }
  }
}

// A failure is noted before anybody else may do a round.
void Loop::run_round(std::span<const epoll_event> events) {
  try {
    begin_round();
    sockets_.look();
    for (const epoll_event& event : events) {
      if (event.data.u32 == wake_up_id) {
        std::uint64_t ignored = 0;
        static_cast<void>(!::read(wake_up_.number(), &ignored, sizeof ignored));
      } else {
        sockets_.handle(event.data.u32, event.events);
      }
    }
    finish_round(follow_ups_per_round);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

// How many milliseconds the thread may sleep.
int Loop::prepare_to_wait() {
  constexpr Time millisecond = second / 1000;
  const Time time = now();
  const Time until = std::min(when_to_run(), sockets_.next_look());
  const Time wait = std::clamp<Time>(until - time, 0, longest_sleep);
  sleeps_until_ = time + wait;
  const std::lock_guard lock(mutex_);
  asleep_ = wait > 0 && tasks_.empty();
  return asleep_ ? static_cast<int>((wait + millisecond - 1) / millisecond) : 0;
}

// 0: at once.
Time Loop::when_to_run() const {
  if (!follow_ups_.empty() || stopping_) {
    return 0;
  }
  Time earliest = sockets_.deadline();
  for (const Machine* machine : machines_) {
    earliest = std::min(earliest, machine->deadline());
  }
  return earliest;
}

void Loop::begin_round() {
  ++round_;
  const Time time = now();
  for (Machine* machine : machines_) {
    machine->on_time(time);
    check_after_event(*machine);
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
  sockets_.flush_listed();
  // Most often, that what was queued is sent: no reason for another round.
  carry_out_follow_ups(most_follow_ups);
  sockets_.push_backlog();
  sockets_.end_round();
  check();
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
  } else {
    wake_helper();
  }
}

void Loop::wake_if_asleep() {
  bool asleep = false;
  {
    const std::lock_guard lock(mutex_);
    asleep = call_the_thread();
  }
  if (asleep) {
    wake();
  }
}

// After a round of another thread's: what the one that helps waits for may have come.
void Loop::wake_helper() {
  bool asleep = false;
  {
    const std::lock_guard lock(mutex_);
    asleep = helped_ && std::exchange(asleep_, false);
  }
  if (asleep) {
    wake();
  }
}

// --- Threads that wait ---

std::weak_ptr<Rounds> Loop::rounds() const { return helpers_; }

void Loop::help(const std::function<bool()>& enough, Time longest) {
  if (longest < shortest_help || generation_ != os::fork_generation() || !begin_to_help()) {
    return;
  }
  std::unique_lock running(running_);
  const bool is_interrupted = do_rounds(running, enough, now() + std::min(longest, longest_help));
  end_help(enough(), is_interrupted);
}

// The loop's thread may sleep on the sockets; it is to rest.
bool Loop::begin_to_help() {
  bool asleep = false;
  {
    const std::lock_guard lock(mutex_);
    if (!started_ || ended_ || helped_ || without_help_ > 0) {
      without_help_ -= without_help_ > 0 ? 1 : 0;
      return false;
    }
    helped_ = true;
    asleep = !rests_ && std::exchange(asleep_, false);
  }
  if (asleep) {
    wake();
  }
  return true;
}

// Returns whether a signal has come: the program may have something to do.
bool Loop::do_rounds(std::unique_lock<std::mutex>& running, const std::function<bool()>& enough, Time until) {
  std::array<epoll_event, events_per_round> events;
  int looks = 0;
  for (Time time = now(); !enough() && !stopping_ && failure_ == nullptr && time < until; time = now()) {
    const bool sleeps = looks >= looks_before_sleep && prepare_to_wait() > 0;
    const Time longest = std::min(until, sleeps_until_) - time;
    running.unlock();
    const bool goes_on = !sleeps || sleep_on_sockets(longest);
    const int count = ::epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), 0);
    if (count == 0 && !sleeps) {
      std::this_thread::yield();
    }
    running.lock();
    bool has_tasks = false;
    {
      const std::lock_guard lock(mutex_);
      asleep_ = false;
      has_tasks = !tasks_.empty();
    }
    ++looks;
    if (failure_ == nullptr && !stopping_ && (count > 0 || has_tasks || when_to_run() <= now())) {
      run_round(std::span(events).first(static_cast<std::size_t>(std::max(count, 0))));
      looks = 0;
    }
    if (!goes_on) {
      return true;
    }
  }
  return false;
}

// False: a signal has come. (epoll_wait() counts in milliseconds.)
bool Loop::sleep_on_sockets(Time longest) const {
  pollfd sockets{epoll_.number(), POLLIN, 0};
  const timespec limit{longest / second, longest % second};
  return ::ppoll(&sockets, 1, &limit, nullptr) >= 0;
}

// With running_ held. The thread is left to rest if there is nothing for it until a next one helps.
void Loop::end_help(bool well, bool is_interrupted) {
  const Time time = now();
  const Time next = time + until_next_help;
  const bool is_due = stopping_ || failure_ != nullptr || when_to_run() < next;
  bool sleeps_on_sockets = false;
  {
    const std::lock_guard lock(mutex_);
    helped_ = false;
    if (well) {
      pause_ = 0;
    } else if (!is_interrupted) {
      without_help_ = pause_ = std::clamp(2 * pause_, 1, longest_pause);
    }
    sleeps_on_sockets = !rests_;
    if (well && !is_due && !std::exchange(wanted_, false) && tasks_.empty() && rests_) {
      helped_until_ = next;
      sleeps_until_ = next;
    } else {
      helped_until_ = 0;
      rest_is_over_.notify_one();
    }
  }
  if (sleeps_on_sockets) {
    wake();  // perhaps for longer than it may, since rounds have been done meanwhile
  }
}

void Loop::end_rest() {
  if (generation_ != os::fork_generation()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  wanted_ = helped_;
  if (!helped_) {
    helped_until_ = 0;
    rest_is_over_.notify_one();
  }
}

// Of the loop's thread, instead of sleeping on the sockets.
bool Loop::rest_while_helped() {
  std::unique_lock lock(mutex_);
  if (!helped_ && helped_until_ <= now()) {
    return false;
  }
  rests_ = true;
  while (helped_ || now() < helped_until_) {
    rest_is_over_.wait_for(lock, std::chrono::nanoseconds(until_next_help));
  }
  rests_ = false;
  return true;
}

// --- Machines and links ---

void Loop::add(Machine& machine) {
  machines_.push_back(&machine);
  machine.on_time(now());
}

void Loop::remove(Machine& machine) {
  sockets_.forget(machine);
  memory_.forget(machine);
  follow_ups_.forget(machine);
  std::erase(machines_, &machine);
}

LinkId Loop::add_link(Machine& machine, Connection connection, const LinkOptions& options) {
  if (const auto socket = connection.take<Socket>()) {
    return add_socket(machine, std::move(*socket), options);
  }
  throw std::invalid_argument("this driver does not know that kind of connection");
}

LinkId Loop::add_socket(Machine& machine, Socket socket, const LinkOptions& options) {
  const LinkId link = ++last_link_;
  sockets_.add(link, machine, std::move(socket), options);
  return link;
}

std::pair<LinkId, LinkId> Loop::add_pair(Machine& first, Machine& second) {
  const LinkId a = ++last_link_;
  const LinkId b = ++last_link_;
  memory_.add(a, first, b, second);
  return {a, b};
}

// --- Actions, and what follows from them ---

void Loop::send(Machine& machine, LinkId link, const wire::Header& header, Bytes owned,
                std::span<const std::byte> borrowed, Token token) {
  if (Sockets::End* const end = sockets_.find(link)) {
    sockets_.send(*end, header, std::move(owned), borrowed, token);
  } else if (memory_.has(link)) {
    memory_.send(machine, link, header, std::move(owned), borrowed, token);
  } else {
    follow_ups_.add_sent(machine, token);
  }
}

void Loop::detach(Machine& machine, Token token) {
  sockets_.detach(machine, token);
  memory_.detach(machine, token);
}

void Loop::close(LinkId link) {
  if (!sockets_.close(link)) {
    memory_.close(link);
  }
}

void Loop::sum(Machine& machine, const Sum& sum) {
  shoal::carry_out(sum);
  follow_ups_.add_summed(machine, sum.token);
}

void Loop::carry_out_follow_ups(std::size_t most) {
  for (std::size_t count = 0; count < most && !follow_ups_.empty(); ++count) {
    carry_out(follow_ups_.take());
  }
}

void Loop::carry_out(const FollowUp& next) {
  switch (next.kind) {
    case FollowUp::Kind::sent:
      next.machine->on_sent(next.token);
      check_after_event(*next.machine);
      break;
    case FollowUp::Kind::summed:
      next.machine->on_summed(next.token);
      check_after_event(*next.machine);
      break;
    case FollowUp::Kind::memory:
      memory_.carry_out_next();
      break;
    case FollowUp::Kind::read:
      sockets_.receive(next.link);
      break;
  }
}

void Loop::check() const {
#ifdef SHOAL_CHECKED
  memory_.check_invariants();
  sockets_.check_invariants();
#endif
}

// --- Counters ---

Loop::Counters Loop::counters() const {
  const LinkCounters& traffic = sockets_.traffic();
  return {traffic.bytes_sent.load(std::memory_order_relaxed), traffic.bytes_received.load(std::memory_order_relaxed),
          links_.load(std::memory_order_relaxed)};
}

}  // namespace shoal::tcp
