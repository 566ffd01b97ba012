#include "drivers/sim/packet_level/flow.h"

#include <algorithm>
#include <cmath>

namespace shoal::sim::packet_level {

namespace {

constexpr std::uint32_t enough_later = 3;  // packets that arrived after it was sent make one count as lost
constexpr double least_window = 2;         // packets, after a loss
constexpr std::uint32_t most_backoff = 8;
constexpr std::uint64_t endless = std::uint64_t{1} << 62;

}  // namespace

bool Reassembly::add(std::uint64_t offset, std::uint32_t length) {
  if (offset != end_) {
    if (offset > end_) {
      ahead_.emplace(offset, length);
    }
    return false;
  }
  end_ += length;
  for (auto next = ahead_.begin(); next != ahead_.end() && next->first == end_; next = ahead_.erase(next)) {
    end_ += next->second;
  }
  return true;
}

Flow::Flow(Fabric& fabric, HostId from, HostId to, Sink& sink)
    : fabric_(fabric),
      timeline_(fabric.timeline()),
      from_(from),
      to_(to),
      sink_(sink),
      window_(fabric.settings().first_window),
      round_trip_(2 * fabric.settings().delay),
      variation_(round_trip_ / 2) {}

void Flow::write(std::uint64_t bytes) {
  written_ += bytes;
  send();
}

void Flow::send_endlessly(std::uint32_t window) {
  fixed_window_ = window;
  written_ = endless;
  send();
}

void Flow::happen(const Event& event) {
  const Packet& packet = event.packet;
  switch (event.what) {
    case at_switch: {
      const Time arrival = fabric_.pass_switch(to_, packet.length + packet_headers);
      if (arrival != never) {
        timeline_.at(arrival, *this, at_receiver, packet);
      }
      break;
    }
    case at_receiver:
      timeline_.at(timeline_.now() + fabric_.settings().delay, *this, at_sender, packet);
      if (received_.add(packet.offset, packet.length)) {
        sink_.arrived(received_.end());
      }
      break;
    case at_sender:
      acknowledge(packet);
      break;
    case timer:
      if (event.when == next_look_) {
        next_look_ = never;
        timer_at_ <= timeline_.now() ? time_out() : set_timer();
      }
      break;
    case room:
      waits_for_room_ = false;
      send();
      break;
  }
}

void Flow::send() {
  while (static_cast<double>(sent_.size()) + 1 <= window() && (!lost_.empty() || cut_ < written_) && has_room()) {
    transmit(next_packet());
  }
}

// A flow that finds none is called again when some of it has left.
bool Flow::has_room() {
  while (!waiting_.empty() && waiting_.front().leaves <= timeline_.now()) {
    waiting_bytes_ -= waiting_.front().bytes;
    waiting_.pop_front();
  }
  if (waiting_bytes_ < fabric_.settings().host_queue) {
    return true;
  }
  if (!waits_for_room_) {
    waits_for_room_ = true;
    timeline_.at(waiting_.front().leaves, *this, room);
  }
  return false;
}

Packet Flow::next_packet() {
  Packet packet;
  if (!lost_.empty()) {
    packet.offset = lost_.begin()->first;
    packet.length = lost_.begin()->second;
    lost_.erase(lost_.begin());
    ++retransmitted_;
  } else {
    packet.offset = cut_;
    packet.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(most_payload, written_ - cut_));
    cut_ += packet.length;
  }
  packet.transmission = transmissions_++;
  return packet;
}

void Flow::transmit(Packet packet) {
  const std::uint32_t bytes = packet.length + packet_headers;
  const Time leaves = fabric_.leave_host(from_, bytes);
  waiting_.push_back({leaves, bytes});
  waiting_bytes_ += bytes;
  sent_.push_back({packet, timeline_.now(), 0});
  timeline_.at(leaves + fabric_.settings().delay, *this, at_switch, packet);
  if (timer_at_ == never) {
    timer_at_ = timeline_.now() + timeout();
    set_timer();
  }
}

void Flow::acknowledge(const Packet& packet) {
  const bool full = was_full();
  if (!take_from_sent(packet)) {
    lost_.erase(packet.offset);
  }
  const bool moved = acknowledged_.add(packet.offset, packet.length);
  if (recovering_ && acknowledged_.end() >= recovery_end_) {
    recovering_ = false;
  }
  find_losses();
  if (moved) {
    backoff_ = 0;
    grow(full);
    timer_at_ = sent_.empty() && lost_.empty() ? never : timeline_.now() + timeout();
  }
  send();
  set_timer();
}

bool Flow::take_from_sent(const Packet& packet) {
  // Nothing overtakes within a flow: what stands before it is lost, but the sender waits until it may believe so.
  for (auto sent = sent_.begin(); sent != sent_.end() && sent->packet.transmission <= packet.transmission; ++sent) {
    if (sent->packet.transmission == packet.transmission) {
      measure(timeline_.now() - sent->when);
      sent_.erase(sent);
      return true;
    }
    ++sent->later;
  }
  return false;
}

void Flow::find_losses() {
  while (!sent_.empty() && sent_.front().later >= enough_later) {
    const Packet& packet = sent_.front().packet;
    if (packet.offset >= recovery_end_) {
      threshold_ = std::max(least_window, std::floor(window_ / 2));
      window_ = threshold_;
      recovery_end_ = cut_;
      recovering_ = true;
    }
    if (!acknowledged_.has(packet.offset)) {
      lost_.emplace(packet.offset, packet.length);
    }
    sent_.pop_front();
  }
}

void Flow::grow(bool was_full) {
  if (was_full && !recovering_) {
    window_ += window_ < threshold_ ? 1 : 1 / window_;
  }
}

void Flow::time_out() {
  ++fabric_.counts().timeouts;
  threshold_ = std::max(least_window, std::floor(static_cast<double>(sent_.size()) / 2));
  window_ = 1;
  recovering_ = false;
  recovery_end_ = cut_;
  for (const Sent& sent : sent_) {
    if (!acknowledged_.has(sent.packet.offset)) {
      lost_.emplace(sent.packet.offset, sent.packet.length);
    }
  }
  sent_.clear();
  backoff_ = std::min(backoff_ + 1, most_backoff);
  timer_at_ = lost_.empty() ? never : timeline_.now() + timeout();
  send();
  set_timer();
}

// Jacobson's estimator, as in RFC 6298.
void Flow::measure(Time round_trip) {
  const Time difference = round_trip - round_trip_;
  variation_ += (std::abs(difference) - variation_) / 4;
  round_trip_ += difference / 8;
}

Time Flow::timeout() const {
  return (round_trip_ + std::max(4 * variation_, fabric_.settings().least_timeout)) << backoff_;
}

// The timer moves with every acknowledgement; one event that looks at it is enough.
void Flow::set_timer() {
  if (timer_at_ < next_look_) {
    next_look_ = timer_at_;
    timeline_.at(next_look_, *this, timer);
  }
}

}  // namespace shoal::sim::packet_level
