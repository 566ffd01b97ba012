#include "drivers/tcp/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <system_error>

#include "reduce/reduce.h"

namespace shoal::tcp {

namespace {

// What epoll reports for the wake-up descriptor; links count from 1.
constexpr LinkId wake_up_id = 0;

constexpr std::size_t events_per_round = 64;

// Follow-ups of a round; what remains waits for the next, after a look at the sockets.
constexpr std::size_t follow_ups_per_round = 1024;

// With so much queued, a link is flushed at once, so that the network works while the machines do.
constexpr std::size_t flush_early_bytes = 128 * 1024;

// How often the kernel is reminded of what it has not sent.
constexpr Time push_interval = second / 1000;

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
      generation_(fork_generation()) {
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
  if (generation_ != fork_generation()) {
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
  // A thread inherits its maker's floating-point environment, and frameworks can be told to flush denormals to zero:
  // sums must not depend on that.
  std::fesetenv(FE_DFL_ENV);
  std::string failure;
  try {
    run_rounds();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::vector<Task> never_run;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    never_run.swap(tasks_);
  }
  if (failure.empty()) {
    return;
  }
  sockets_.clear();  // so that the others hear of it
  if (on_failure) {
    on_failure(failure);
  }
}

void Loop::run_rounds() {
  while (!stopping_) {
    wait_for_events();
    carry_out_follow_ups();
    flush_listed();
    push_backlog();
    closed_.clear();
    publish_counters();
    if (after_round) {
      after_round();
    }
  }
}

void Loop::wait_for_events() {
  int timeout = milliseconds_to_wait();
  {
    const std::lock_guard lock(mutex_);
    if (!tasks_.empty()) {
      timeout = 0;
    }
    asleep_ = timeout != 0;
  }
  std::array<epoll_event, events_per_round> events;
  const int count = ::epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), timeout);
  const Time time = now();
  for (Machine* machine : machines_) {
    machine->on_time(time);
  }
  take_tasks();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u32 == wake_up_id) {
      std::uint64_t ignored = 0;
      static_cast<void>(!::read(wake_up_.number(), &ignored, sizeof ignored));
    } else {
      handle_socket(event.data.u32, event.events);
    }
  }
}

// -1: until something happens.
int Loop::milliseconds_to_wait() const {
  if (!follow_ups_.empty() || !to_flush_.empty()) {
    return 0;
  }
  Time earliest = never;
  for (const Machine* machine : machines_) {
    earliest = std::min(earliest, machine->deadline());
  }
  if (!backlogged_.empty()) {
    earliest = std::min(earliest, next_push_);
  }
  if (earliest == never) {
    return -1;
  }
  constexpr Time millisecond = second / 1000;
  constexpr Time longest = 3600 * second;
  const Time wait = std::clamp<Time>(earliest - now(), 0, longest);
  return static_cast<int>((wait + millisecond - 1) / millisecond);
}

void Loop::take_tasks() {
  {
    const std::lock_guard lock(mutex_);
    asleep_ = false;
    tasks_at_hand_.swap(tasks_);
  }
  for (Task& task : tasks_at_hand_) {
    task();
  }
  tasks_at_hand_.clear();
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
  std::erase_if(follow_ups_, [&](const FollowUp& next) { return next.machine == &machine; });
  std::erase(machines_, &machine);
}

LinkId Loop::add_socket(Machine& machine, Descriptor socket, const LinkOptions& options) {
  const LinkId id = ++last_link_;
  SocketEnd& end = sockets_[id];
  end = {&machine, std::make_unique<Link>(id, std::move(socket), options)};
  wait_for(*end.link, false, EPOLL_CTL_ADD);
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
  for (FollowUp& next : follow_ups_) {
    if (next.kind == FollowUp::Kind::deliver && next.machine == &machine && next.token == token) {
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

void Loop::sum(Machine& machine, const Sum& sum) {
  reduce(sum.destination, sum.sources, sum.count, sum.dtype, sum.op, sum.divisor);
  follow_ups_.push_back({FollowUp::Kind::summed, &machine, 0, sum.token});
}

// --- Sockets ---

void Loop::handle_socket(LinkId link, std::uint32_t events) {
  // A link that was closed earlier in this round is not found here.
  if ((events & EPOLLOUT) != 0) {
    if (const auto end = sockets_.find(link); end != sockets_.end()) {
      wait_for(*end->second.link, false, EPOLL_CTL_MOD);
      list(*end->second.link);
    }
  }
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    receive(link);
  }
}

void Loop::receive(LinkId link) {
  const auto end = sockets_.find(link);
  if (end == sockets_.end()) {
    return;
  }
  Link& socket = *end->second.link;
  receiving_ = end->second.machine;
  if (socket.receive(*this, traffic_) == Link::Progress::lost) {
    lose_socket(link, socket.why());
  }
}

Placement Loop::frame_begins(LinkId link, const wire::Header& header) { return receiving_->on_header(link, header); }

Status Loop::frame_ends(LinkId link) { return receiving_->on_payload(link); }

void Loop::list(Link& link) {
  if (!link.is_listed && !link.waits_for_room) {
    link.is_listed = true;
    to_flush_.push_back(link.id());
  }
}

void Loop::flush_listed() {
  std::vector<LinkId> links;
  links.swap(to_flush_);
  for (LinkId link : links) {
    if (const auto end = sockets_.find(link); end != sockets_.end()) {
      end->second.link->is_listed = false;
      flush(end->second);
    }
  }
}

void Loop::flush(SocketEnd& end) {
  Link& link = *end.link;
  if (link.broken()) {
    return;
  }
  std::vector<Token> sent;
  const Link::Progress progress = link.flush(sent, traffic_);
  tokens_return(end.machine, sent);
  if (progress == Link::Progress::more) {
    list(link);
  } else if (progress == Link::Progress::blocked) {
    wait_for(link, true, EPOLL_CTL_MOD);
  } else if (progress == Link::Progress::idle && !link.is_backlogged && link.unsent_bytes() > 0) {
    link.is_backlogged = true;
    if (backlogged_.empty()) {
      next_push_ = now() + push_interval;
    }
    backlogged_.push_back(link.id());
  } else if (progress == Link::Progress::lost) {
    follow_ups_.push_back({FollowUp::Kind::broken, end.machine, link.id()});
  }
}

void Loop::push_backlog() {
  if (backlogged_.empty() || now() < next_push_) {
    return;
  }
  next_push_ = now() + push_interval;
  std::erase_if(backlogged_, [this](LinkId id) {
    const auto end = sockets_.find(id);
    if (end == sockets_.end()) {
      return true;
    }
    Link& link = *end->second.link;
    link.is_backlogged = link.unsent_bytes() > 0;
    if (link.is_backlogged) {
      link.push();
    }
    return !link.is_backlogged;
  });
}

void Loop::wait_for(Link& link, bool room, int operation) {
  epoll_event event{};
  event.events = room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u32 = link.id();
  checked(::epoll_ctl(epoll_.number(), operation, link.socket(), &event), "cannot watch a connection");
  link.waits_for_room = room;
}

void Loop::lose_socket(LinkId link, Status why) {
  const auto end = sockets_.find(link);
  Machine* const machine = end->second.machine;
  // Tokens come after on_lost: follow-ups wait for this call to return.
  drop_socket(end);
  machine->on_lost(link, why);
}

std::unordered_map<LinkId, Loop::SocketEnd>::iterator Loop::drop_socket(
    std::unordered_map<LinkId, SocketEnd>::iterator end) {
  std::vector<Token> unsent;
  end->second.link->close(unsent);
  tokens_return(end->second.machine, unsent);
  closed_.push_back(std::move(end->second.link));
  ++links_gone_;
  return sockets_.erase(end);
}

void Loop::tokens_return(Machine* machine, const std::vector<Token>& tokens) {
  for (Token token : tokens) {
    if (token != 0) {
      follow_ups_.push_back({FollowUp::Kind::sent, machine, 0, token});
    }
  }
}

// --- Follow-ups and links in memory ---

void Loop::carry_out_follow_ups() {
  for (std::size_t count = 0; count < follow_ups_per_round && !follow_ups_.empty(); ++count) {
    FollowUp next = std::move(follow_ups_.front());
    follow_ups_.pop_front();
    carry_out(next);
  }
}

void Loop::carry_out(FollowUp& next) {
  switch (next.kind) {
    case FollowUp::Kind::sent:
      next.machine->on_sent(next.token);
      break;
    case FollowUp::Kind::summed:
      next.machine->on_summed(next.token);
      break;
    case FollowUp::Kind::deliver:
      deliver(next);
      tokens_return(next.machine, {next.token});
      break;
    case FollowUp::Kind::other_end_closed:
      lose_memory(next.link, Status::error(Code::peer_lost, "connection closed by peer"));
      break;
    case FollowUp::Kind::broken:
      receive(next.link);
      break;
  }
}

void Loop::deliver(FollowUp& frame) {
  const auto sender = memory_.find(frame.link);
  if (sender == memory_.end()) {
    return;
  }
  const LinkId to = sender->second.other;
  const auto receiver = memory_.find(to);
  if (receiver == memory_.end()) {
    return;
  }
  Machine* const machine = receiver->second.machine;
  const Placement placement = machine->on_header(to, frame.header);
  if (!memory_.contains(to)) {
    return;
  }
  if (!placement.status.ok()) {
    lose_memory(to, placement.status);
    return;
  }
  if (!frame.owned.empty()) {
    std::memcpy(placement.memory, frame.owned.data(), frame.owned.size());
  }
  if (!frame.borrowed.empty()) {
    std::memcpy(placement.memory + frame.owned.size(), frame.borrowed.data(), frame.borrowed.size());
  }
  const Status status = machine->on_payload(to);
  if (!status.ok() && memory_.contains(to)) {
    lose_memory(to, status);
  }
}

void Loop::lose_memory(LinkId link, const Status& why) {
  const auto end = memory_.find(link);
  if (end == memory_.end()) {
    return;
  }
  Machine* const machine = end->second.machine;
  drop_memory(link);
  machine->on_lost(link, why);
}

void Loop::drop_memory(LinkId link) {
  const auto end = memory_.find(link);
  if (end == memory_.end()) {
    return;
  }
  const LinkId other = end->second.other;
  memory_.erase(end);
  ++links_gone_;
  if (const auto rest = memory_.find(other); rest != memory_.end()) {
    follow_ups_.push_back({FollowUp::Kind::other_end_closed, rest->second.machine, other});
  }
}

// --- Counters ---

void Loop::publish_counters() {
  bytes_sent_.store(traffic_.bytes_sent, std::memory_order_relaxed);
  bytes_received_.store(traffic_.bytes_received, std::memory_order_relaxed);
  links_.store(sockets_.size() + memory_.size(), std::memory_order_relaxed);
}

Loop::Counters Loop::counters() const {
  return {bytes_sent_.load(std::memory_order_relaxed), bytes_received_.load(std::memory_order_relaxed),
          links_.load(std::memory_order_relaxed)};
}

}  // namespace shoal::tcp
