#include "drivers/shm/shared_group.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "drivers/shm/bells.h"
#include "drivers/shm/futex.h"
#include "os/thread.h"
#include "reduce/reduce.h"

namespace shoal::shm {

namespace {

using std::chrono::nanoseconds;

// When all is lost, what can still be finished has so long.
constexpr Time longest_finish = second / 4;

// A thread that sleeps looks again after so long in any case.
constexpr nanoseconds longest_sleep{second};

// How often a thread that waits lets others run before it sleeps: what it waits for is mostly their next step, and
// where ranks have a core each it is there before a sleeper would be woken (docs/decisions/local-flows.md).
constexpr int most_yields = 20;

// A program that has waited for one of several operations waits for the next one after less than this: until then the
// attendant leaves the work to it. Both at once would wait for each other, and move the slots from core to core.
constexpr Time until_next_wait = second / 20'000;

Time now() { return std::chrono::steady_clock::now().time_since_epoch() / nanoseconds(1); }

// Whether the bell has rung meanwhile.
bool yield_until_rung(const RankWords& words, std::uint32_t seen) {
  for (int i = 0; i < most_yields && words.bell.load() == seen; ++i) {
    std::this_thread::yield();
  }
  return words.bell.load() != seen;
}

std::uint32_t place_of(std::uint32_t rank, const std::vector<std::uint32_t>& members) {
  return static_cast<std::uint32_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace

SharedGroup::SharedGroup(std::uint32_t number, std::shared_ptr<const Memory> memory, const JobConfig& config,
                         std::vector<std::uint32_t> members, std::uint32_t rank, bool has_other_nodes, GroupUser& user)
    : number_(number),
      memory_(std::move(memory)),
      own_(place_of(rank, members)),
      allocator_(std::make_shared<ArrayAllocator>(memory_, own_)),
      user_(user),
      words_(memory_->words(own_)),
      group_(*memory_, config, std::move(members), rank, has_other_nodes, *this) {}

void SharedGroup::start() {
  attendant_ = os::start_thread([this] { attend(); });
}

void SharedGroup::add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                            const std::optional<local::Internode>& internode) {
  const std::lock_guard lock(submitting_);
  new_groups_.push_back({number, id, ranks, internode});
  any_new_groups_.store(true);
}

// --- Taking steps ---

template <class Works, class Enough>
void SharedGroup::run(Works may_work, Enough enough, std::uint32_t waiters_here) {
  bool more = true;
  do {
    const bool works = may_work();
    // A thread that cannot have the lock leaves the work to its holder, which looks again when it is done. A thread
    // that waits for an operation waits for the lock.
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
    const bool was_whole = group_.broken().ok();
    try {
      more = take_steps(works);
    } catch (const std::exception& error) {
      more = was_whole;  // the others are told, by the attendant if this thread has had enough
      give_up(error);
    }
    wake_at_.store(group_.deadline());
    can_work_.store(group_.can_work());
    // Another thread of this rank may wait for one of them.
    if (ended_ > 0 && words_.waiting.load() > waiters_here) {
      shm::ring(words_);
    }
    lock.unlock();
    run_deferred();
  } while ((more || submissions_.load() > 0) && !enough());
}

// What ranks say to each other, then one thing with a chunk of a large operation, and what follows from it. Whether
// there may be more to do.
bool SharedGroup::take_steps(bool works) {
  group_.on_time(now());
  take_network_results();
  take_submissions();
  while (group_.step()) {
  }
  const bool worked = works && group_.work();
  if (worked) {
    if (group_.passes_chain()) {
      group_.work();  // which costs nothing: not another round for it
    }
    group_.on_time(now());
    while (group_.step()) {
    }
  }
#ifdef SHOAL_CHECKED
  group_.check_invariants();
#endif
  return worked;
}

// Groups first: what is submitted may be in one of them.
void SharedGroup::take_submissions() {
  while (submissions_.load() > 0 || any_new_groups_.load()) {
    std::vector<NewGroup> groups;
    std::optional<Submitted> next;
    {
      const std::lock_guard lock(submitting_);
      groups.swap(new_groups_);
      any_new_groups_.store(false);
      if (!submitted_.empty()) {
        next = std::move(submitted_.front());
        submitted_.pop_front();
        submissions_.fetch_sub(1);
      }
    }
    for (const NewGroup& group : groups) {
      group_.add_group(group.number, group.id, group.ranks, group.internode);
    }
    if (!next) {
      continue;
    }
    if (auto* const submission = std::get_if<Submission>(&*next)) {
      group_.call(std::move(*submission));
    } else if (const auto* const input = std::get_if<Input>(&*next)) {
      group_.input_ready(input->handle, input->problem);
    } else if (const auto& join = std::get<Join>(*next); join.over) {
      group_.end_join(join.group);
    } else {
      group_.join(join.group);
    }
  }
}

void SharedGroup::take_network_results() {
  if (!arrived_.load()) {
    return;
  }
  std::vector<local::NetworkResult> arrivals;
  {
    const std::lock_guard lock(arriving_);
    arrived_.store(false);
    arrivals = network_results_.take();
  }
  for (const local::NetworkResult& arrival : arrivals) {
    if (arrival.ended) {
      group_.averaged(arrival.handle, arrival.status, arrival.told);
    } else {
      group_.chunk_averaged(arrival.handle, arrival.chunk);
    }
  }
}

// --- Threads ---

void SharedGroup::submit(Submission&& submission) {
  words_.open.fetch_add(1);
  submit_next(std::move(submission));
}

void SharedGroup::input_ready(std::uint64_t handle, std::string problem) {
  submit_next(Input{handle, std::move(problem)});
}

void SharedGroup::submit_later(Submission submission) {
  words_.open.fetch_add(1);
  add_submitted(std::move(submission));
  shm::ring(words_, true);
}

void SharedGroup::join(std::uint32_t group, bool over) { submit_next(Join{group, over}); }

void SharedGroup::add_submitted(Submitted next) {
  const std::lock_guard lock(submitting_);
  submitted_.push_back(std::move(next));
  submissions_.fetch_add(1);
}

void SharedGroup::submit_next(Submitted next) {
  add_submitted(std::move(next));
  run([] { return false; }, [] { return false; });
  // The rest is for the next thread that waits, or for the attendant.
  if (can_work_.load() || submissions_.load() > 0) {
    shm::ring(words_, true);
  }
}

void SharedGroup::wait(const std::function<bool()>& done, nanoseconds longest) {
  const Time deadline = now() + longest.count();
  words_.waiting.fetch_add(1);
  std::uint32_t seen = 0;
  for (;;) {
    seen = words_.bell.load();
    run([] { return true; }, [&] { return done() || now() >= deadline; }, 1);
    if (done()) {
      break;
    }
    const Time time = now();
    if (deadline <= time) {
      break;
    }
    if (yield_until_rung(words_, seen)) {
      continue;
    }
    words_.asleep.fetch_add(1);
    sleep_on(words_.bell, seen,
             nanoseconds(std::min({deadline, wake_at_.load(), Time(time + longest_sleep.count())}) - time), waiters);
    words_.asleep.fetch_sub(1);
  }
  waited_until_.store(now());
  words_.waiting.fetch_sub(1);
  // From here on others wake the attendant; what they did before may have been seen by nobody.
  const bool rung = words_.bell.load() != seen;
  if (submissions_.load() > 0 || not_run_.load() > 0 || (rung && others_are_blocked())) {
    shm::ring(words_, true);
  } else if (words_.open.load() > 0 && (rung || can_work_.load())) {
    shm::ring(words_);
  }
}

void SharedGroup::attend() {
  ::pthread_setname_np(::pthread_self(), "shoal-inside");
  while (!closing_.load()) {
    const std::uint32_t seen = words_.bell.load();
    while (words_.waiting.load() == 0 && now() < waited_until_.load() + until_next_wait) {
      std::this_thread::yield();
    }
    // Two threads at once would only be in each other's way.
    run([this] { return words_.waiting.load() == 0; }, [] { return false; });
    const Time left = std::min<Time>(wake_at_.load() - now(), longest_sleep.count());
    words_.attendant_asleep.store(1);
    if (!closing_.load()) {
      sleep_on(words_.bell, seen, nanoseconds(left), attendants);
    }
    words_.attendant_asleep.store(0);
  }
}

// Some of them may wait until this rank has read what they have written.
bool SharedGroup::others_are_blocked() const {
  for (std::uint32_t rank = 0; rank < memory_->ranks(); ++rank) {
    if (rank != own_ && memory_->words(rank).blocked.load() != 0) {
      return true;
    }
  }
  return false;
}

// By the holder of the lock. This rank's threads hear of it, and one of them tells the others.
void SharedGroup::give_up(const std::exception& error) {
  group_.give_up(error);
  shm::ring(words_, true);
}

// --- What is done without the lock ---

void SharedGroup::run_later(std::function<void()> question) {
  const std::lock_guard lock(deferring_);
  deferred_.push_back(std::move(question));
  not_run_.fetch_add(1);
}

// A thread that finds another one running them, or itself further up its stack, leaves the rest to that call.
void SharedGroup::run_deferred() {
  while (not_run_.load() > 0 && !runs_deferred_.exchange(true)) {
    while (not_run_.load() > 0) {
      std::function<void()> question;
      {
        const std::lock_guard lock(deferring_);
        question = std::move(deferred_.front());
        deferred_.pop_front();
        not_run_.fetch_sub(1);
      }
      try {
        question();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        give_up(error);
      }
    }
    runs_deferred_.store(false);
  }
}

void SharedGroup::hand_over(Submission submission) {
  user_.release(submission.handle);  // before those who wait for it are rung
  note_end();
  run_later([this, submission = std::move(submission)]() mutable { user_.hand_over(std::move(submission)); });
}

void SharedGroup::send_up(Submission submission, const std::optional<local::Chunks>& chunks) {
  {
    const std::lock_guard lock(arriving_);
    network_results_.expect(submission.handle, chunks);
  }
  run_later([this, submission = std::move(submission)]() mutable { user_.send_up(std::move(submission)); });
}

void SharedGroup::contributed(std::uint64_t handle, Range range) {
  run_later([this, handle, range] { user_.contributed(handle, range); });
}

void SharedGroup::open_as_failed(Submission submission) {
  run_later([this, submission = std::move(submission)]() mutable { user_.hand_over(std::move(submission)); });
}

void SharedGroup::fail_job(const Status& why) {
  run_later([this, why] { user_.fail_job(why); });
}

void SharedGroup::empty() {
  run_later([this] { user_.left(*this); });
}

// --- The rest of the group's world ---

void SharedGroup::ring(std::uint32_t rank, bool always) { shm::ring(memory_->words(rank), always); }

void SharedGroup::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

void SharedGroup::sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
                      Operator op, double divisor) {
  reduce(destination, sources, count, dtype, op, divisor);
}

void SharedGroup::note_end() {
  words_.open.fetch_sub(1);
  ++ended_;
}

void SharedGroup::finish(std::uint64_t handle, Status status) {
  note_end();
  user_.finish(handle, std::move(status));
}

// --- From other threads ---

void SharedGroup::received(std::uint64_t handle, Range range) {
  bool any = false;
  {
    const std::lock_guard lock(arriving_);
    any = network_results_.received(handle, range);
    arrived_.store(any || arrived_.load());
  }
  if (any) {
    shm::ring(words_);
  }
}

void SharedGroup::averaged(std::uint64_t handle, Status status) {
  bool any = false;
  {
    const std::lock_guard lock(arriving_);
    any = network_results_.ended(handle, std::move(status));
    arrived_.store(any || arrived_.load());
  }
  if (any) {
    shm::ring(words_);
  }
}

std::byte* SharedGroup::allocate_told(std::uint64_t handle, const std::vector<std::uint64_t>& by_node) {
  const std::lock_guard lock(arriving_);
  return network_results_.allocate(handle, by_node);
}

std::map<std::uint64_t, wire::Wait> SharedGroup::described(const std::vector<std::uint64_t>& handles) {
  const std::lock_guard lock(mutex_);
  return group_.described(handles);
}

bool SharedGroup::has_called(const wire::Call& call) {
  const std::lock_guard lock(mutex_);
  return group_.has_called(call);
}

// By the worker's thread, which cannot be asked anything meanwhile: what comes up is for the next thread that takes
// steps.
local::LocalGroup::Failed SharedGroup::fail(const wire::Call& call, const Status& why) {
  local::LocalGroup::Failed failed;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return failed;
    }
    failed = group_.fail_call(call, why);
  }
  shm::ring(words_, true);
  return failed;
}

// As fail().
void SharedGroup::gone(std::uint32_t rank) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    group_.note_gone(rank);
  }
  shm::ring(words_, true);
}

void SharedGroup::fail_all(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !group_.broken().ok()) {
      return;
    }
    // What was lost may have done its part before. The worker's thread must not be kept for long.
    const Time deadline = now() + longest_finish;
    try {
      while (take_steps(true) && now() < deadline) {
      }
    } catch (const std::exception&) {
      // Whatever is wrong with the memory: all that is open ends for the first reason.
    }
    take_network_results();
    group_.fail_all(why, true);
  }
  shm::ring(words_, true);
}

void SharedGroup::leave() {
  {
    const std::lock_guard lock(mutex_);
    group_.leave();
  }
  run([] { return false; }, [] { return false; });
  shm::ring(words_, true);  // if another thread was at work
}

void SharedGroup::close() {
  closing_.store(true);
  if (attendant_.joinable()) {
    words_.bell.fetch_add(1);
    wake(words_.bell, attendants);
    attendant_.join();
  }
  const std::lock_guard lock(mutex_);
  if (closed_) {
    return;
  }
  group_.detach_arrays();
  closed_ = true;
  words_.gone.store(1);
  for (std::uint32_t rank = 0; rank < memory_->ranks(); ++rank) {
    if (rank != own_ && memory_->words(rank).blocked.load() != 0) {
      shm::ring(memory_->words(rank), true);
    }
  }
}

}  // namespace shoal::shm
