#include "drivers/sim/packet_level/fabric.h"

#include <algorithm>

#include "drivers/sim/packet_level/flow.h"

namespace shoal::sim::packet_level {

Fabric::Fabric(Timeline& timeline, const FabricSettings& settings) : timeline_(timeline), settings_(settings) {
  for (const HostSettings& host : settings_.hosts) {
    ports_.push_back({Line(host), Line(host), host.queue});
  }
}

Fabric::~Fabric() = default;

Flow& Fabric::add_flow(HostId from, HostId to, Sink& sink) {
  return *flows_.emplace_back(std::make_unique<Flow>(*this, from, to, sink));
}

Time Fabric::leave_host(HostId from, std::uint32_t bytes) {
  ++counts_.packets;
  return ports_[from].sending.carry(bytes, timeline_.now());
}

Time Fabric::pass_switch(HostId to, std::uint32_t bytes) {
  Port& port = ports_[to];
  const std::size_t queue = port.receiving.waiting(timeline_.now()) + bytes;
  if (queue > port.queue) {
    ++counts_.dropped;
    return never;
  }
  counts_.largest_queue = std::max(counts_.largest_queue, queue);
  return port.receiving.carry(bytes, timeline_.now());
}

}  // namespace shoal::sim::packet_level
