// How a room's all-reduces go on to the other nodes of the job, and how results come back.
//
// The first rank of the node speaks for it. Once all ranks of the node have called an operation it opens the same one
// among the first ranks of all nodes; its contribution is the node's sum, which may be sent as it grows. What has come
// of it is the first rank's to say: no other rank ends such an operation before it has. So all agree, whatever happens
// when.
//
// 16-bit means: a node's part of it is its sum divided by the ranks of the largest node, so that it does not overflow
// where the mean does not, and is rounded once; the servers divide the rest.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "drivers/shm/partial.h"
#include "drivers/shm/room_impl.h"
#include "protocol/keys.h"

namespace shoal::shm {

namespace {

wire::Bytes encoded(Range range) {
  wire::Bytes body(sizeof range);
  std::memcpy(body.data(), &range, sizeof range);
  return body;
}

}  // namespace

// --- The first rank ---

Submission Room::Impl::for_network(const Operation& operation) const {
  const Submission& s = operation.submission;
  const Uplink& uplink = *operation.group->uplink;
  Submission up;
  up.handle = s.handle;
  up.collective = Collective::all_reduce;
  up.group = uplink.group;
  up.name = s.name;
  up.occurrence = operation.opening.occurrence;
  up.op = s.op;
  up.dtype = s.dtype;
  up.shape = s.shape;
  up.input = up.output = s.output;
  up.input_bytes = up.output_bytes = s.output_bytes;
  up.timeout = s.timeout + others_first;
  up.divisor = partial_of(s.dtype, s.op, uplink.ranks, uplink.largest).rest;
  return up;
}

// Large ones: what is sent follows, chunk by chunk.
void Room::Impl::send_up(Operation& operation, const Chunks& chunks) {
  Submission up = for_network(operation);
  up.streamed = true;
  operation.at_network = true;
  arrivals_.expect(up.handle, chunks);
  ask([this, up = std::move(up)]() mutable { world_.send_up(std::move(up)); });
}

void Room::Impl::average_small(Operation& operation) {
  const Submission& s = operation.submission;
  const Uplink& uplink = *operation.group->uplink;
  const Partial partial = partial_of(s.dtype, s.op, uplink.ranks, uplink.largest);
  reduce_small(operation, partial.divisor, partial.op);
  operation.state = Operation::State::away;
  operation.at_network = true;
  moving_[s.handle] = operation.key;
  arrivals_.expect(s.handle, std::nullopt);
  ask([this, up = for_network(operation)]() mutable { world_.send_up(std::move(up)); });
}

void Room::Impl::received(std::uint64_t handle, Range range) {
  if (arrivals_.received(handle, range)) {
    ring(desk_);
  }
}

void Room::Impl::averaged(std::uint64_t handle, Status status) {
  if (arrivals_.ended(handle, std::move(status))) {
    ring(desk_);
  }
}

void Room::Impl::take_arrivals() {
  for (Arrival& arrival : arrivals_.take()) {
    const auto key = moving_.find(arrival.name);
    if (key == moving_.end()) {
      continue;
    }
    Operation& operation = *find(Hash128(key->second));
    operation.moved = now();
    if (!arrival.ended) {
      if (ranks_ > 1) {
        ++operation.parts;
        delivery_.add({arrival.name, operation.submission.output, arrival.chunk, operation.lent});
      }
      continue;
    }
    operation.at_network = false;
    if (!broken_.ok()) {
      moving_.erase(key);
      if (operation.state != Operation::State::over) {
        end(operation, broken_);
      }
      continue;
    }
    deliver_on();  // before the end is said
    operation.verdict = arrival.status;
    if (!arrival.status.ok()) {
      operation.parts -= delivery_.drop(arrival.name);
      say(Kind::failed, operation.key, wire::encode(wire::Failure{arrival.status}));
    } else if (operation.state == Operation::State::away) {
      const Submission& s = operation.submission;
      say(Kind::done, operation.key, {}, {s.output, s.output_bytes});
    }
    end_if_through(operation);
  }
}

// Something is wrong with it that other ranks and nodes have to hear: from the first rank, as soon as it knows what it
// is.
void Room::Impl::settle_dispute(Operation& operation) {
  if (!is_first() || operation.told) {
    return;
  }
  const std::optional<Collective> collective = collective_of(operation);
  if (collective || operation.opened == ranks_) {
    fail_everywhere(operation, collective.value_or(Collective::all_reduce), *operation.disputed);
  }
}

std::optional<Collective> Room::Impl::collective_of(const Operation& operation) const {
  const std::optional<wire::Opening> opening = opening_of(operation);
  return opening && !opening->failed ? std::optional(opening->collective) : std::nullopt;
}

// What a rank of this node has called, if any has; this one's if it has.
std::optional<wire::Opening> Room::Impl::opening_of(const Operation& operation) const {
  std::optional<wire::Opening> any;
  if (operation.called) {
    any = operation.opening;
  }
  for (const Call& call : operation.calls) {
    if ((!any || any->failed) && !call.body.empty()) {
      any = decoded(call.body);
    }
  }
  return any;
}

void Room::Impl::fail_everywhere(Operation& operation, Collective collective, const Status& why) {
  wire::Bytes what{static_cast<std::byte>(collective)};
  say(Kind::failed, operation.key, wire::encode(wire::Failure{why}), what);
  tell_network(operation, collective, why);
  operation.verdict = why;
  if (operation.called && operation.state != Operation::State::over) {
    end(operation, why);
  }
}

// The other nodes wait for it: for the first rank in an all-reduce, for every rank in everything else.
void Room::Impl::tell_network(Operation& operation, Collective collective, const Status& why) {
  const std::optional<wire::Opening> opening = opening_of(operation);
  if (std::exchange(operation.told, true) || !opening) {
    return;
  }
  Submission failed;
  failed.collective = collective;
  failed.occurrence = opening->occurrence;
  failed.name = opening->name == unnamed ? std::string() : opening->name;
  failed.timeout = second;
  failed.failure = why.message;
  failed.failure_code = why.code;
  failed.failure_rank = why.rank;
  const std::shared_lock lock(naming_);
  for (const auto& [number, group] : groups_) {
    if (group->id != opening->group) {
      continue;
    }
    if (collective != Collective::all_reduce) {
      failed.group = number;
      ask([this, failed = std::move(failed)]() mutable { world_.hand_over(std::move(failed)); });
    } else if (is_first()) {
      failed.group = group->uplink->group;
      ask([this, failed = std::move(failed)]() mutable { world_.send_up(std::move(failed)); });
    }
    return;
  }
}

void Room::Impl::hear_overdue(Operation& operation, const Status& why) {
  if (operation.state != Operation::State::gathering || operation.opened == ranks_ || operation.told) {
    return;
  }
  if (!has_uplink_) {
    withhold(operation, why);
  } else {
    fail_everywhere(operation, collective_of(operation).value_or(Collective::all_reduce), why);
  }
}

// --- The other ranks ---

void Room::Impl::hear(const Record& record) {
  if (record.kind == Kind::overdue) {
    if (Operation* operation = find(record.key); operation != nullptr && is_first()) {
      hear_overdue(*operation, decoded_status(record.body));
    }
    return;
  }
  Operation& operation = operation_of(record.key);
  operation.moved = now();
  switch (record.kind) {
    case Kind::part:
      return hear_part(operation, record.body);
    case Kind::done:
      return hear_verdict(operation, {}, record.data);
    case Kind::withhold:
      operation.withheld = true;
      return;
    case Kind::go_on:
      operation.withheld = false;
      if (operation.opened == 0) {
        operations_.erase(Hash128(operation.key));  // over here, or not begun
        return;
      }
      return proceed(operation);
    default: {
      const Status why = decoded_status(record.body);
      if (!record.data.empty()) {
        tell_network(operation, static_cast<Collective>(record.data.front()), why);
      }
      return hear_verdict(operation, why, {});
    }
  }
}

void Room::Impl::hear_part(Operation& operation, ConstBytes body) {
  Range range;
  if (body.size() != sizeof range || operation.state != Operation::State::flowing) {
    throw std::runtime_error("a part of a result that was not asked for");
  }
  std::memcpy(&range, body.data(), sizeof range);
  if (range.begin > range.end || range.end > operation.submission.output_bytes ||
      (operation.lent == nullptr && range.size() > memory_->shape().slot)) {
    throw std::runtime_error("a part of a result that does not fit");
  }
  ++operation.parts;
  delivery_.add({operation.submission.handle, operation.submission.output, range, operation.lent});
}

void Room::Impl::hear_verdict(Operation& operation, const Status& status, ConstBytes result) {
  operation.verdict = status;
  if (!operation.called) {
    return;
  }
  if (operation.state == Operation::State::over) {
    return forget_if_done(Hash128(operation.key));
  }
  if (operation.state == Operation::State::flowing || is_admitted(operation)) {
    return end_if_through(operation);
  }
  if (status.ok() && result.size() != operation.submission.output_bytes) {
    throw std::runtime_error("a result of the wrong size");
  }
  if (!result.empty()) {
    std::memcpy(operation.submission.output, result.data(), result.size());
  }
  end(operation, status);
  forget_if_done(Hash128(operation.key));
}

// --- All ranks ---

// The others have begun with it, so this rank has to do its part, whatever comes of it.
bool Room::Impl::is_admitted(const Operation& operation) const {
  return std::find(admitted_.begin(), admitted_.end(), operation.key) != admitted_.end();
}

void Room::Impl::deliver_on() {
  while (const std::optional<Delivery::Part> part = delivery_.take_done()) {
    const auto key = moving_.find(part->name);
    if (key == moving_.end()) {
      continue;
    }
    Operation& operation = *find(Hash128(key->second));
    --operation.parts;
    if (is_first()) {
      operation.lent_parts += operation.lent != nullptr ? 1 : 0;
      say(Kind::part, operation.key, encoded(part->range));
    }
    end_if_through(operation);
  }
  while (const std::optional<Delivery::Part> part = delivery_.take_returned()) {
    if (const auto key = moving_.find(part->name); key != moving_.end()) {
      Operation& operation = *find(Hash128(key->second));
      --operation.lent_parts;
      operation.moved = now();
      end_if_through(operation);
    }
  }
}

// The last of three: the verdict, the flow, and the delivery of what has arrived. The first rank also waits until the
// others have copied what its array has for them.
void Room::Impl::end_if_through(Operation& operation) {
  const bool flows = operation.state == Operation::State::flowing || is_admitted(operation);
  if (!operation.verdict || (flows && (!operation.flowed || operation.parts > 0))) {
    return;
  }
  if (is_first() && flows && operation.verdict->ok() && !std::exchange(operation.told_done, true)) {
    say(Kind::done, operation.key);
  }
  if (operation.lent_parts > 0) {
    return;
  }
  const Hash128 key = operation.key;
  moving_.erase(operation.submission.handle);
  end(operation, *operation.verdict);
  forget_if_done(key);
}

}  // namespace shoal::shm
