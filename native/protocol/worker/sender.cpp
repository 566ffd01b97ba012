// What a worker sends of its operations to servers, and when: with their openings, and within windows.
// docs/protocol/lifecycle.md.
#include <algorithm>
#include <utility>

#include "protocol/worker/impl.h"

namespace shoal {

using wire::Header;
using wire::Type;

std::span<const std::byte> Worker::Impl::take_inline(Operation& operation, Part& part) {
  const bool admitted_later = !operation.gathers() && !takes_ring(operation);
  if (operation.opening.failed || !operation.contributes() || !(admitted_later || operation.bytes <= config_.small)) {
    return {};
  }
  worker::ServerLink& server = servers_[part.server];
  if (reopening_ && operation.gathers()) {
    // Counts for nothing: what went through the home before must do so again.
    const bool wanted = operation.bytes <= config_.small && operation.opening.exchange == 0;
    return {operation.submission.input, wanted ? static_cast<std::size_t>(operation.bytes) : 0};
  }
  const std::uint32_t bytes = config_.inline_of(part.shard.size(), part.segment);
  if (!operation.has({part.shard.begin, part.shard.begin + bytes})) {
    return {};
  }
  const bool answered_before = operation.opening.finished || !operation.have.empty();
  if (answered_before || bytes == 0 || server.eager + bytes > config_.eager) {
    return {};
  }
  // A part of a shard only saves a round trip, of which there is none to save behind other operations.
  if (bytes < part.shard.size() && (server.unanswered > 0 || server.eager > 0)) {
    return {};
  }
  const std::byte* data = operation.submission.input + part.shard.begin;
  part.eager = bytes;
  part.sent.offset += bytes;
  server.eager += bytes;
  note_sending(operation);
  return {data, bytes};
}

void Worker::Impl::announce(std::uint32_t server, std::uint32_t group) {
  if (group == 0 || !servers_[server].announced.insert(group).second) {
    return;
  }
  const Group& members = *groups_[group];
  send_to_server(server, {.type = Type::group}, wire::encode(wire::GroupMembers{members.id, members.ranks}));
}

// What came with openings takes of the window too, so that not more than a window is on its way. But where nothing else
// is, one segment may always be sent, so that operations that wait for their last member hold nothing up.
bool Worker::Impl::may_send(const worker::ServerLink& link, std::uint64_t length) {
  const auto least = static_cast<std::int64_t>(std::min<std::uint64_t>(length, link.window.segment));
  const auto wanted = static_cast<std::int64_t>(link.unanswered == 0 ? 0 : length + link.eager);
  return link.credit >= std::max(least, wanted);
}

// Of smaller segments no more are on their way than a window has of its own, and more than one only where no other
// server waits for as many: what one link sends at once keeps the worker's wire from the others.
bool Worker::Impl::has_enough_on_its_way(const Operation& operation, const Part& part, std::uint64_t length) const {
  const worker::ServerLink& link = servers_[part.server];
  const std::uint64_t on_its_way = part.unanswered + part.eager;
  if (!has_smaller_segments(part) || on_its_way == 0) {
    return false;
  }
  const auto window = static_cast<std::uint64_t>(std::max<std::int64_t>(link.credit, 0)) + link.unanswered;
  const std::uint64_t segments = std::max<std::uint64_t>(window / link.window.segment, 1);
  return on_its_way + length > segments * part.segment || part.segments_sent() > operation.least_sent();
}

bool Worker::Impl::has_smaller_segments(const Part& part) const {
  return part.segment < servers_[part.server].window.segment;
}

// Spends credit on admitted operations, in the server's order.
void Worker::Impl::pump(std::uint32_t server) {
  worker::ServerLink& link = servers_[server];
  while (!link.admitted.empty()) {
    // One that has failed sends nothing more: its arrays are not the worker's any longer.
    Operation* operation = find_going_on(link.admitted.front());
    if (operation == nullptr || operation->part_of(server).all_sent()) {
      link.admitted.pop_front();
      continue;
    }
    Part& part = operation->part_of(server);
    const Cursor at = part.next_to_send();
    const Range segment = part.segment_at(at);
    const std::uint64_t length = segment.size();
    if (!operation->has(segment) || !may_send(link, length) || !operation->in_step(part) ||
        has_enough_on_its_way(*operation, part, length)) {
      return;
    }
    const std::uint64_t least_sent = has_smaller_segments(part) ? operation->least_sent() : 0;
    const bool paces = part.is_reference && operation->follows_reference;
    const double step = paces ? operation->step() : 1;
    link.credit -= static_cast<std::int64_t>(length);
    link.unanswered += length;
    part.unanswered += length;
    part.sent = {at.run, segment.end};
    const Header header{.type = Type::data,
                        .dtype = operation->submission.dtype,
                        .operation = operation->number,
                        .offset = segment.begin};
    wire::Bytes copied;
    const std::span<const std::byte> data = contribution(*operation, segment, copied);
    note_sending(*operation);
    send_to_server(server, header, std::move(copied), data, data.empty() ? 0 : operation->number);
    // Others' next ones may have waited for this one.
    const bool least_rose = has_smaller_segments(part) && operation->least_sent() > least_sent;
    const bool step_rose = paces && operation->step() > step;
    for (const Part& other : operation->parts) {
      if (least_rose || (step_rose && other.follows_reference)) {
        pump(other.server);
      }
    }
  }
}

// This server is owed less than before, or nothing: those that keep step with it may have waited for that.
void Worker::Impl::pump_others(const Operation& operation, std::uint32_t server) {
  for (const Part& part : operation.parts) {
    if (part.follows_reference && part.server != server) {
      pump(part.server);
    }
  }
}

void Worker::Impl::admitted(Operation& operation, Part& part) {
  part.admitted = true;
  servers_[part.server].admitted.push_back(operation.number);
  if (rank_ != 0 || operation.controlled || operation.finished || operation.bytes <= config_.small) {
    return;
  }
  operation.controlled = true;
  if (controlled_++ == 0) {
    congestion_.begin(now_);
  }
}

std::uint64_t Worker::Impl::retransmissions() const {
  std::uint64_t sum = 0;
  for (const worker::ServerLink& server : servers_) {
    sum += server.link ? world_.retransmissions(*server.link) : 0;
  }
  return sum;
}

void Worker::Impl::begin_window(std::uint32_t server) {
  worker::ServerLink& link = servers_[server];
  link.window = config_.window_of(server);
  link.credit = link.window.credit;
  link.most_credit = config_.credit_of(server, config_.most_credit());
  link.is_reference = config_.is_reference(server);
  link.follows_reference = config_.follows_reference(server);
}

void Worker::Impl::set_window(const CongestionController::Setting& window) {
  window_ = window;
  const std::uint8_t flags = window.competing ? wire::flag_competing : 0;
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    if (config_.weights[server] > 0) {
      send_to_server(server, {.type = Type::window, .flags = flags, .credit = window.credit});
    }
  }
}

void Worker::Impl::note_sending(Operation& operation) {
  if (!std::exchange(operation.sending, true) && !operation.finished) {
    world_.sending(operation.submission.handle);
  }
}

}  // namespace shoal
