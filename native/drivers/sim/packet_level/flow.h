// TCP in one direction: a stream of bytes from one host to another, by the rules of Reno with selective
// acknowledgements.
//
// What it models:
//   * The window begins with 10 packets, grows by one for each packet acknowledged (slow start) or by one a round trip
//     (above the threshold), and only while it is what holds the flow back.
//   * A packet is taken for lost when three sent after it have arrived. It is sent again, and the window is halved,
//     once for all that was on its way at that time.
//   * A packet that nobody misses in this way (the last ones of a burst) waits for the timer: the smoothed round-trip
//     time plus four times its variation, or plus `least_timeout` if that is more; doubled each time. Then the window
//     is one packet, and everything on its way is sent again.
//   * Bytes arrive in order: what follows a gap waits for it.
// What it leaves out: the handshake (its round trip is known from the start), tail loss probes, pacing, delayed
// acknowledgements, the receiver's window, the new start after a pause, and undoing of what turns out to have been no
// loss. It is kind to nobody: a lost tail costs the whole timer.
//
// Invariant, in bytes of the stream: acknowledged ≤ received ≤ cut ≤ written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "drivers/sim/packet_level/fabric.h"
#include "drivers/sim/packet_level/timeline.h"

namespace shoal::sim::packet_level {

// Who hears of the stream's bytes at its end.
class Sink {
 public:
  virtual ~Sink() = default;
  // All bytes before `end` are there.
  virtual void arrived(std::uint64_t end) = 0;
};

// Which bytes of a stream are there.
class Reassembly {
 public:
  // Whether `end` has moved.
  bool add(std::uint64_t offset, std::uint32_t length);
  // All bytes before it are there.
  std::uint64_t end() const { return end_; }
  bool has(std::uint64_t offset) const { return offset < end_ || ahead_.count(offset) > 0; }

 private:
  std::uint64_t end_ = 0;
  std::map<std::uint64_t, std::uint32_t> ahead_;  // beyond a gap: offset → length
};

class Flow final : public Target {
 public:
  Flow(Fabric& fabric, HostId from, HostId to, Sink& sink);

  // So many more bytes are to be sent.
  void write(std::uint64_t bytes);
  // From now on there is always more to send. `window`: always so many packets, whatever happens to them, as bbr does
  // roughly with twice what its path holds; 0: Reno's.
  void send_endlessly(std::uint32_t window);

  // What a socket would tell (TCP_INFO).
  std::uint64_t retransmitted() const { return retransmitted_; }
  Time round_trip() const { return round_trip_; }
  double window() const { return fixed_window_ > 0 ? fixed_window_ : window_; }

  void happen(const Event& event) override;

 private:
  enum What : std::uint32_t { at_switch, at_receiver, at_sender, timer, room };

  struct Sent {
    Packet packet;
    Time when = 0;
    std::uint32_t later = 0;  // packets sent after it that have arrived
  };
  struct Waiting {
    Time leaves = 0;
    std::uint32_t bytes = 0;
  };

  void send();
  bool has_room();
  Packet next_packet();
  void transmit(Packet packet);
  void acknowledge(const Packet& packet);
  // Takes what has arrived from what is on its way; counts it as later than what was sent before it. False: it was
  // taken for lost before.
  bool take_from_sent(const Packet& packet);
  void find_losses();
  void grow(bool was_full);
  void time_out();
  void measure(Time round_trip);
  void set_timer();
  Time timeout() const;
  bool was_full() const { return static_cast<double>(sent_.size()) + 1 > window(); }

  Fabric& fabric_;
  Timeline& timeline_;
  const HostId from_;
  const HostId to_;
  Sink& sink_;

  // The sender.
  std::uint64_t written_ = 0;
  std::uint64_t cut_ = 0;  // into packets
  std::uint64_t transmissions_ = 0;
  std::deque<Sent> sent_;                        // on their way, in the order of transmission
  std::map<std::uint64_t, std::uint32_t> lost_;  // to be sent again: offset → length
  Reassembly acknowledged_;
  double window_;            // packets
  double threshold_ = 1e12;  // of slow start, packets
  std::uint32_t fixed_window_ = 0;
  bool recovering_ = false;          // the window was halved, and does not grow
  std::uint64_t recovery_end_ = 0;   // of losses before it no more notice is taken
  std::uint64_t retransmitted_ = 0;  // packets
  std::deque<Waiting> waiting_;      // in the host
  std::size_t waiting_bytes_ = 0;
  bool waits_for_room_ = false;

  Time round_trip_;
  Time variation_;
  std::uint32_t backoff_ = 0;
  Time timer_at_ = never;
  Time next_look_ = never;  // at the timer: the event that is pending

  // The receiver.
  Reassembly received_;
};

}  // namespace shoal::sim::packet_level
