// The virtual clock of the packet_level network: events without allocation, since a run has tens of millions of them.
// In the order of their time, and among equals in the order in which they were made.
#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "protocol/machine.h"

namespace shoal::sim::packet_level {

// Some bytes of a flow's stream, on their way.
struct Packet {
  std::uint64_t offset = 0;        // of the first byte in the stream
  std::uint64_t transmission = 0;  // counts what the flow has sent, retransmissions included
  std::uint32_t length = 0;        // payload bytes
};

struct Event;

class Target {
 public:
  virtual ~Target() = default;
  virtual void happen(const Event& event) = 0;
};

struct Event {
  Time when = 0;
  std::uint64_t number = 0;
  Target* target = nullptr;
  Packet packet;
  std::uint32_t what = 0;  // the target's own name for it

  bool operator<(const Event& other) const { return std::pair(when, number) > std::pair(other.when, other.number); }
};

class Timeline {
 public:
  Time now() const { return now_; }
  std::uint64_t events() const { return events_; }

  void at(Time when, Target& target, std::uint32_t what, const Packet& packet = {}) {
    queue_.push({when < now_ ? now_ : when, made_++, &target, packet, what});
  }

  // Carries out the next event. False: there is none.
  bool step() {
    if (queue_.empty()) {
      return false;
    }
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.when;
    ++events_;
    event.target->happen(event);
    return true;
  }

 private:
  std::priority_queue<Event> queue_;
  Time now_ = 0;
  std::uint64_t made_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace shoal::sim::packet_level
