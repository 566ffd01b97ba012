// A switched network under a virtual clock: hosts with one port each, a switch that drops, and TCP flows (flow.h).
//
// What it models:
//   * A host's port sends and receives at the host's rate, both at once. Packets leave a host in the order in which its
//     flows made them; a flow keeps at most `host_queue` bytes waiting there, as Linux's "small queues" do, and
//     nothing is dropped there.
//   * The switch holds, for each host, a first-in first-out queue of so many bytes in front of the link toward it. A
//     packet that does not fit is dropped.
//   * A packet carries up to 1448 bytes of its flow's stream, and 52 more for IP and TCP headers.
//   * The delay is that of the way from one host to another, beside the time in queues and on links.
//   * Acknowledgements take the delay, no bytes and no time in queues, and are never lost.
//   * A link may be a token bucket's instead of a wire's: what it did not carry while it was idle, up to `burst`
//     bytes, it carries afterwards at once. (The links of `shoal lab` are of that kind; wires are not.)
// What it leaves out: Ethernet's own 38 bytes a packet, segmentation offload (a burst of a flow enters the switch
// packet by packet), marks instead of drops (ECN), a switch's memory that ports share.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "drivers/sim/packet_level/timeline.h"

namespace shoal::sim::packet_level {

class Flow;
class Sink;

inline constexpr std::uint32_t most_payload = 1448;  // bytes of a packet
inline constexpr std::uint32_t packet_headers = 52;

using HostId = std::uint32_t;

struct HostSettings {
  double rate = 50e6;              // bytes a second, in each direction
  std::size_t queue = 256 * 1024;  // bytes that the switch holds for it
  std::uint32_t burst = 0;         // bytes, in each direction
};

struct FabricSettings {
  std::vector<HostSettings> hosts;
  Time delay = 50'000;                 // nanoseconds from host to host
  Time least_timeout = 200'000'000;    // TCP's, nanoseconds
  std::uint32_t first_window = 10;     // TCP's, packets
  std::size_t host_queue = 64 * 1024;  // bytes of one flow that wait in its host
};

// One direction of a link: what is put on it leaves in order, at the link's rate.
class Line {
 public:
  explicit Line(const HostSettings& host)
      : nanoseconds_per_byte_(1e9 / host.rate), burst_(static_cast<Time>(host.burst * nanoseconds_per_byte_)) {}

  // When these bytes will have left.
  Time carry(std::uint32_t bytes, Time now) {
    const Time since = now - burst_;  // time that was not used and may still be
    free_at_ = (free_at_ < since ? since : free_at_) + std::llround(bytes * nanoseconds_per_byte_);
    return free_at_ < now ? now : free_at_;
  }
  // Bytes that wait or are leaving.
  std::size_t waiting(Time now) const {
    return free_at_ <= now ? 0 : static_cast<std::size_t>(static_cast<double>(free_at_ - now) / nanoseconds_per_byte_);
  }

 private:
  double nanoseconds_per_byte_;
  Time burst_;
  Time free_at_ = 0;
};

struct Counts {
  std::uint64_t packets = 0;  // put on the network, retransmissions included
  std::uint64_t dropped = 0;
  std::uint64_t timeouts = 0;
  std::size_t largest_queue = 0;  // bytes
};

class Fabric {
 public:
  Fabric(Timeline& timeline, const FabricSettings& settings);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // A flow between two hosts that are not the same. The sink hears what arrives; it must outlive the run.
  Flow& add_flow(HostId from, HostId to, Sink& sink);

  Timeline& timeline() { return timeline_; }
  const FabricSettings& settings() const { return settings_; }
  const Counts& counts() const { return counts_; }
  Counts& counts() { return counts_; }

  // For flows. When a packet has left its host.
  Time leave_host(HostId from, std::uint32_t bytes);
  // Passes the switch's queue. When it has reached its host; never: it is dropped.
  Time pass_switch(HostId to, std::uint32_t bytes);

 private:
  struct Port {
    Line sending;
    Line receiving;
    std::size_t queue;
  };

  Timeline& timeline_;
  const FabricSettings settings_;
  std::vector<Port> ports_;  // by host
  std::vector<std::unique_ptr<Flow>> flows_;
  Counts counts_;
};

}  // namespace shoal::sim::packet_level
