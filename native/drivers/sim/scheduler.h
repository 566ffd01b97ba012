// The virtual clock: events in the order of their time, and among equals in the order in which they were made.
//
// Every event belongs to an actor, one process of the simulated job. A frozen actor's events wait until it thaws; a
// stopped actor's events are thrown away.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "protocol/machine.h"

namespace shoal::sim {

using ActorId = std::uint32_t;

// The actor of events that come from outside of all processes, such as faults. Never frozen, never stopped.
inline constexpr ActorId outside = 0;

class Scheduler {
 public:
  Scheduler() : actors_(1) {}

  ActorId add_actor() {
    actors_.emplace_back();
    return static_cast<ActorId>(actors_.size() - 1);
  }

  Time now() const { return now_; }
  std::uint64_t events() const { return events_; }

  void at(Time when, ActorId actor, std::function<void()> body) {
    std::uint32_t place = 0;
    if (free_.empty()) {
      place = static_cast<std::uint32_t>(bodies_.size());
      bodies_.push_back(std::move(body));
    } else {
      place = free_.back();
      free_.pop_back();
      bodies_[place] = std::move(body);
    }
    queue_.push({when < now_ ? now_ : when, made_++, actor, place});
  }

  void freeze(ActorId actor, Time until) { actors_[actor].frozen_until = std::max(actors_[actor].frozen_until, until); }
  void stop(ActorId actor) { actors_[actor].stopped = true; }
  bool stopped(ActorId actor) const { return actors_[actor].stopped; }

  // Carries out the next event. False: there is none.
  bool step() {
    if (queue_.empty()) {
      return false;
    }
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.when;
    const Actor& actor = actors_[event.actor];
    if (!actor.stopped && actor.frozen_until > now_) {
      // With its old number: of what a process finds when it goes on, nothing comes before what it follows from,
      // however often the process was frozen in between.
      queue_.push({actor.frozen_until, event.number, event.actor, event.body});
      return true;
    }
    const std::function<void()> body = std::move(bodies_[event.body]);
    free_.push_back(event.body);
    if (actor.stopped) {
      return true;
    }
    ++events_;
    body();
    return true;
  }

 private:
  struct Actor {
    Time frozen_until = 0;
    bool stopped = false;
  };
  struct Event {
    Time when;
    std::uint64_t number;
    ActorId actor;
    std::uint32_t body;  // its place in bodies_: what the queue moves about is small

    bool operator<(const Event& other) const { return std::pair(when, number) > std::pair(other.when, other.number); }
  };

  std::priority_queue<Event> queue_;
  std::vector<std::function<void()>> bodies_;
  std::vector<std::uint32_t> free_;  // places in bodies_
  std::vector<Actor> actors_;
  Time now_ = 0;
  std::uint64_t made_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace shoal::sim
