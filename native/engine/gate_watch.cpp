#include "engine/gate_watch.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "os/thread.h"

namespace shoal::engine {

namespace {

using std::chrono::microseconds;

// An accelerator's copy takes tens of microseconds to some milliseconds. Longer looking would take a processor from the
// program, longer sleep would show in every small operation.
constexpr microseconds looks_for{20};
constexpr microseconds sleeps_for{20};

// How often it is asked of a gate that stays closed whether it will ever open.
constexpr std::chrono::milliseconds asks_every{500};

// How long the end waits for what an accelerator is still to bring.
constexpr std::chrono::seconds longest_end{3};

}  // namespace

void GateWatch::start() {
  const std::lock_guard lock(mutex_);
  if (closing_ || thread_.joinable()) {
    return;
  }
  if (asking_ == nullptr) {
    auto asking = std::make_shared<Asking>();
    os::start_thread([asking] { answer(*asking); }).detach();
    asking_ = std::move(asking);
  }
  thread_ = os::start_thread([this] { run(); });
}

bool GateWatch::add(Gate gate, Told told, bool also_at_end) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return false;
    }
    added_.push_back({std::move(gate), std::move(told), also_at_end, ++count_, Clock::now()});
  }
  changed_.notify_one();
  return true;
}

void GateWatch::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
  if (asking_ != nullptr) {
    const std::lock_guard lock(asking_->mutex);
    asking_->is_over = true;
    asking_->changed.notify_one();
  }
}

void GateWatch::run() {
  ::pthread_setname_np(::pthread_self(), "shoal-gates");
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // in nanoseconds; by default a sleep takes 50 microseconds more
  std::vector<Watched> closed;
  Clock::time_point looks_until = Clock::now();
  Clock::time_point ends_at = Clock::time_point::max();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (closed.empty()) {
        changed_.wait(lock, [this] { return closing_ || !added_.empty(); });
      }
      if (!added_.empty()) {
        std::move(added_.begin(), added_.end(), std::back_inserter(closed));
        added_.clear();
        looks_until = Clock::now() + looks_for;
      }
      if (closing_) {
        std::erase_if(closed, [](const Watched& watched) { return !watched.also_at_end; });
        ends_at = std::min(ends_at, Clock::now() + longest_end);
      }
    }
    if (Clock::now() >= ends_at) {
      for (const Watched& watched : closed) {
        watched.told("the accelerator has not done what comes before it");
      }
      return;
    }
    if (closed.empty() && ends_at != Clock::time_point::max()) {
      return;
    }
    if (tell_of_open(closed)) {
      looks_until = Clock::now() + looks_for;
    } else if (const Clock::time_point now = Clock::now(); now >= looks_until) {
      tell_of_broken(closed, now);
      std::this_thread::sleep_for(sleeps_for);
    }
  }
}

bool GateWatch::tell_of_open(std::vector<Watched>& closed) {
  const auto first_open = std::stable_partition(closed.begin(), closed.end(),
                                                [](const Watched& watched) { return !watched.gate.is_open(); });
  std::vector<Watched> open(std::make_move_iterator(first_open), std::make_move_iterator(closed.end()));
  closed.erase(first_open, closed.end());
  for (const Watched& watched : open) {
    watched.told("");
  }
  return !open.empty();
}

void GateWatch::tell_of_broken(std::vector<Watched>& closed, Clock::time_point now) {
  std::string problem;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(asking_->mutex);
    if (asking_->is_answered) {
      asking_->is_answered = false;
      problem = std::move(asking_->answer);
      number = std::exchange(asking_->number, 0);
    }
    const auto asked_of = std::find_if(closed.begin(), closed.end(), [now](const Watched& watched) {
      return watched.gate.problem != nullptr && now - watched.asked_at >= asks_every;
    });
    if (asking_->number == 0 && asked_of != closed.end()) {
      asked_of->asked_at = now;
      asking_->number = asked_of->number;
      asking_->question = asked_of->gate.problem;
      asking_->changed.notify_one();
    }
  }
  const auto broken =
      std::find_if(closed.begin(), closed.end(), [number](const Watched& watched) { return watched.number == number; });
  if (!problem.empty() && broken != closed.end()) {
    const Watched told_of = std::move(*broken);
    closed.erase(broken);
    told_of.told(problem);
  }
}

void GateWatch::answer(Asking& asking) {
  ::pthread_setname_np(::pthread_self(), "shoal-asks");
  std::unique_lock lock(asking.mutex);
  for (;;) {
    asking.changed.wait(lock, [&asking] { return asking.is_over || asking.question != nullptr; });
    if (asking.is_over) {
      return;
    }
    const std::function<std::string()> question = std::exchange(asking.question, nullptr);
    lock.unlock();
    std::string answer = question();
    lock.lock();
    asking.answer = std::move(answer);
    asking.is_answered = true;
  }
}

}  // namespace shoal::engine
