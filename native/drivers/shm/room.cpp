// A room's threads: who does its work, and when they sleep.
#include "drivers/shm/room.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "drivers/shm/futex.h"
#include "drivers/shm/room_impl.h"

namespace shoal::shm {

namespace {

using std::chrono::nanoseconds;

// Contributions of at most so many bytes lie beside the opening.
constexpr std::size_t most_inline = 16 * 1024;

// When all is lost, what can still be finished has so long.
constexpr Time longest_finish = second / 4;

// Who sleeps looks again after so long, whatever happens.
constexpr nanoseconds longest_sleep{second};

// How often a thread that waits lets others run before it sleeps: what it waits for is mostly their next step, and
// where ranks have a core each it is there before a sleeper would be woken (docs/decisions/inside-the-node.md).
constexpr int most_yields = 20;

// Whether the bell has rung meanwhile.
bool yield_until_rung(const Desk& desk, std::uint32_t seen) {
  for (int i = 0; i < most_yields && desk.bell.load() == seen; ++i) {
    std::this_thread::yield();
  }
  return desk.bell.load() != seen;
}

}  // namespace

Room::Impl::Impl(std::shared_ptr<const Memory> memory, const JobConfig& config, std::vector<std::uint32_t> members,
                 std::uint32_t rank, bool has_uplink, RoomWorld& world)
    : memory_(std::move(memory)),
      config_(config),
      members_(std::move(members)),
      has_uplink_(has_uplink),
      ranks_(memory_->shape().ranks),
      rank_(static_cast<std::uint32_t>(std::find(members_.begin(), members_.end(), rank) - members_.begin())),
      arena_(std::make_shared<Arena>(memory_, rank_)),
      inline_bytes_(std::min<std::size_t>(config.small, most_inline)),
      world_(world),
      desk_(memory_->desk(rank_)),
      writer_(*memory_, rank_),
      flow_(*memory_, rank_),
      delivery_(*memory_, rank_),
      left_(ranks_) {
  for (std::uint32_t other = 0; other < ranks_; ++other) {
    readers_.emplace_back(*memory_, rank_, other);
  }
  desk_.here.store(1);
}

void Room::Impl::start() {
  // Signals are for the application's threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  attendant_ = std::thread([this] { attend(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Room::Impl::add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                           const std::optional<Uplink>& uplink) {
  std::vector<std::uint32_t> here;
  for (std::uint32_t rank : ranks) {
    const auto place = std::find(members_.begin(), members_.end(), rank);
    if (place != members_.end()) {
      here.push_back(static_cast<std::uint32_t>(place - members_.begin()));
    }
  }
  const std::unique_lock lock(naming_);
  groups_[number] = std::make_unique<Group>(Group{id, std::move(here), uplink});
}

std::string Room::Impl::names_of(const std::vector<std::uint32_t>& ranks) const {
  std::vector<std::uint32_t> named;
  named.reserve(ranks.size());
  for (std::uint32_t rank : ranks) {
    named.push_back(members_[rank]);
  }
  return ranks_text(named, config_);
}

template <class Works, class Enough>
void Room::Impl::run(Works may_work, Enough enough, std::uint32_t waiters_here) {
  bool more = true;
  do {
    const bool works = may_work();
    // Who cannot have it leaves the work to whoever has: that thread looks again when it is done. Who waits, waits.
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!works) {
      if (!lock.try_lock()) {
        return;
      }
    } else {
      lock.lock();
    }
    if (closed_) {
      return;
    }
    ended_ = 0;
    try {
      more = round(works);
    } catch (const std::exception& error) {
      more = false;
      give_up(failed_here(error));
    }
    wake_at_.store(next_check_);
    can_work_.store(flow_.ready() || delivery_.ready());
    // Another thread of this rank may wait for one of them.
    if (ended_ > 0 && desk_.waiting.load() > waiters_here) {
      ring(desk_);
    }
    lock.unlock();
    ask_network();
  } while ((more || submissions_.load() > 0) && !enough());
}

void Room::Impl::submit(Submission submission) {
  {
    const std::lock_guard lock(submitting_);
    submitted_.push_back(std::move(submission));
    submissions_.fetch_add(1);
  }
  run([] { return false; }, [] { return false; });
  // What is left to do is for whoever waits next, or for the attendant.
  if (desk_.waiting.load() == 0 && (can_work_.load() || submissions_.load() > 0)) {
    ring(desk_, true);
  }
}

void Room::Impl::wait(const std::function<bool()>& done, nanoseconds longest) {
  const Time deadline = now() + longest.count();
  desk_.waiting.fetch_add(1);
  std::uint32_t seen = 0;
  for (;;) {
    seen = desk_.bell.load();
    run([] { return true; }, [&] { return done() || now() >= deadline; }, 1);
    if (done()) {
      break;
    }
    const Time time = now();
    if (deadline <= time) {
      break;
    }
    if (yield_until_rung(desk_, seen)) {
      continue;
    }
    desk_.asleep.fetch_add(1);
    sleep_on(desk_.bell, seen,
             nanoseconds(std::min({deadline, wake_at_.load(), Time(time + longest_sleep.count())}) - time), waiters);
    desk_.asleep.fetch_sub(1);
  }
  desk_.waiting.fetch_sub(1);
  // From here on others wake the attendant; what they did before may have been seen by nobody.
  const bool rung = desk_.bell.load() != seen;
  if (submissions_.load() > 0 || unasked_.load() > 0 || (rung && others_are_blocked())) {
    ring(desk_, true);
  } else if (desk_.open.load() > 0 && (rung || can_work_.load())) {
    ring(desk_);
  }
}

void Room::Impl::attend() {
  ::pthread_setname_np(::pthread_self(), "shoal-inside");
  while (!closing_.load()) {
    const std::uint32_t seen = desk_.bell.load();
    // Two threads at once would only be in each other's way.
    run([this] { return desk_.waiting.load() == 0; }, [] { return false; });
    const Time left = std::min<Time>(wake_at_.load() - now(), longest_sleep.count());
    desk_.attendant_asleep.store(1);
    if (!closing_.load()) {
      sleep_on(desk_.bell, seen, nanoseconds(left), attendants);
    }
    desk_.attendant_asleep.store(0);
  }
}

// Whether there may be more to do.
bool Room::Impl::round(bool works) {
  ++rounds_;
  take_arrivals();
  take_submissions();
  read_all();  // first, since others may have ended what is called here now
  write_calls();
  read_all();
  look_who_has_left();
  begin_complete();
  bool worked = false;
  // Results do not hold up what others wait for.
  if (works && broken_.ok() && (flow_.step() || delivery_.step())) {
    flowed_ = now();
    flow_on();
    worked = true;
  }
  if (broken_.ok()) {
    deliver_on();
  }
  look_at_the_time();
  worked = settle_doubts() || worked;
  say_goodbye_if_done();
  return worked;
}

// In the node's room, that is: whoever has said so there has left this one too, which it may not even know.
void Room::Impl::look_who_has_left() {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_ || left_[rank] || !broken_.ok() || !memory_->has_left(rank)) {
      continue;
    }
    read_mailbox(rank);  // all that it has called is there
    left_[rank] = true;
    fail_those_who_need(rank);
  }
}

void Room::Impl::ring_others() { shm::ring_others(*memory_, rank_); }

// Some of them may wait until this rank has read what they have written.
bool Room::Impl::others_are_blocked() const {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && memory_->desk(rank).blocked.load() != 0) {
      return true;
    }
  }
  return false;
}

void Room::Impl::ask(std::function<void()> question) {
  const std::lock_guard lock(asking_);
  questions_.push_back(std::move(question));
  unasked_.fetch_add(1);
}

// Whoever finds another thread at it, or itself further up, leaves the rest to that one.
void Room::Impl::ask_network() {
  while (unasked_.load() > 0 && !asks_.exchange(true)) {
    while (unasked_.load() > 0) {
      std::function<void()> question;
      {
        const std::lock_guard lock(asking_);
        question = std::move(questions_.front());
        questions_.pop_front();
        unasked_.fetch_sub(1);
      }
      try {
        question();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        give_up(failed_here(error));
      }
    }
    asks_.store(false);
  }
}

Status Room::Impl::failed_here(const std::exception& error) const {
  return Status::error(Code::aborted,
                       "operations between the ranks of this machine failed on " + name_of(rank_) + ": " + error.what(),
                       in_job(rank_));
}

// By the network's thread, which cannot be asked anything meanwhile: what comes up is for the next thread of a round.
void Room::Impl::fail_all(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !broken_.ok()) {
      return;
    }
    // What was lost may have done its part before. The network's thread must not be kept for long.
    const Time deadline = now() + longest_finish;
    try {
      while (round(true) && now() < deadline) {
      }
    } catch (const std::exception&) {
      // Whatever is wrong with the memory: all that is open ends for the first reason.
    }
    take_arrivals();
    end_all(why, true);
  }
  ring(desk_, true);
}

void Room::Impl::leave() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  run([] { return false; }, [] { return false; });
  ring(desk_, true);  // if another thread was at work
}

void Room::Impl::close() {
  if (!attendant_.joinable()) {
    return;
  }
  closing_.store(true);
  desk_.bell.fetch_add(1);
  wake(desk_.bell, attendants);
  attendant_.join();
  const std::lock_guard lock(mutex_);
  detach_arrays();
  closed_ = true;
  desk_.gone.store(1);
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && memory_->desk(rank).blocked.load() != 0) {
      ring(memory_->desk(rank), true);
    }
  }
}

// --- The room as others see it ---

Room::Room(std::shared_ptr<const Memory> memory, const JobConfig& config, std::vector<std::uint32_t> members,
           std::uint32_t rank, bool has_uplink, RoomWorld& world)
    : impl_(std::make_unique<Impl>(std::move(memory), config, std::move(members), rank, has_uplink, world)) {}
Room::~Room() = default;

void Room::start() { impl_->start(); }
void Room::add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                     const std::optional<Uplink>& uplink) {
  impl_->add_group(number, id, ranks, uplink);
}
void Room::received(std::uint64_t handle, Range range) { impl_->received(handle, range); }
void Room::averaged(std::uint64_t handle, Status status) { impl_->averaged(handle, std::move(status)); }
std::shared_ptr<std::byte> Room::allocate(std::size_t bytes) { return impl_->allocate(bytes); }
void Room::submit(Submission submission) { impl_->submit(std::move(submission)); }
void Room::wait(const std::function<bool()>& done, nanoseconds longest) { impl_->wait(done, longest); }
void Room::fail_all(const Status& why) { impl_->fail_all(why); }
std::map<std::uint64_t, wire::Wait> Room::described(const std::vector<std::uint64_t>& handles) {
  return impl_->described(handles);
}
bool Room::has_called(const wire::Call& call) { return impl_->has_called(call); }
Room::Failed Room::fail(const wire::Call& call, const Status& why) { return impl_->fail_call(call, why); }
void Room::leave() { impl_->leave(); }
void Room::close() { impl_->close(); }

}  // namespace shoal::shm
