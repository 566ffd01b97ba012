// What a worker keeps of an operation until all members have what they get, so that it can be sent again when a server
// is lost: docs/protocol/recovery.md, "Opening again", and docs/decisions/server-loss.md.
//
// Of one whose handle is done: a copy of a small contribution, the results that others may lack, or only that it has
// ended, and how. What all members have, servers say with HAVE and in the RESULTs of a large all-reduce.
#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/worker/impl.h"

namespace shoal {

using wire::Type;
using worker::Kept;
using worker::refused;

// --- Keeping ---

// Its result is about to take the place of what it contributed.
void Worker::Impl::keep_input(Operation& operation) {
  if (operation.finished || !operation.contributes() || operation.bytes == 0) {
    return;
  }
  operation.own_input = pool_.take(operation.bytes);
  std::memcpy(operation.own_input.data(), operation.submission.input, operation.bytes);
  operation.submission.input = operation.own_input.data();
}

void Worker::Impl::keep_result(Part& part, LinkState& link, Range segment) {
  // What this worker sent as the result that it had before is kept already.
  part.kept.push_back({link.payload ? segment : Range{}, std::move(link.payload)});
  const std::uint32_t needed_no_more =
      std::min(link.header.acknowledged - part.released, static_cast<std::uint32_t>(part.kept.size()));
  part.kept.erase(part.kept.begin(), part.kept.begin() + needed_no_more);
  part.released += needed_no_more;
}

void Worker::Impl::keep_finished(std::unique_ptr<Operation> operation) {
  const auto lost = [this](std::uint32_t rank) {
    return std::any_of(lost_.begin(), lost_.end(), [rank](const auto& loss) { return loss.first == rank; });
  };
  const std::vector<std::uint32_t>& ranks = operation->group->needed;
  const bool settled =
      std::all_of(operation->parts.begin(), operation->parts.end(), [](const Part& part) { return part.settled; });
  if (!broken_.ok() || goodbye_said_ || std::any_of(ranks.begin(), ranks.end(), lost) ||
      (operation->failure.ok() && settled)) {
    return;
  }
  operation->finished = true;
  operation->ring.reset();
  operation->exchange.incoming.clear();
  operation->exchange.outgoing.clear();
  operation->submission.output = nullptr;
  if (!operation->own_input) {
    operation->submission.input = nullptr;
  }
  if (!operation->failure.ok()) {
    operation->own_input = Buffer();
    operation->kept.clear();
    for (Part& part : operation->parts) {
      part.kept.clear();
      part.settled = part.server != operation->home;
    }
  }
  const std::uint64_t number = operation->number;
  finished_.emplace(number, std::move(operation));
}

// From the array while it is the worker's to use, otherwise from what was kept of it.
std::span<const std::byte> Worker::Impl::contribution(Operation& operation, Range segment, wire::Bytes& copied) const {
  const Submission& s = operation.submission;
  const bool is_result = operation.shares_results(config_) && (operation.finished || operation.have.contains(segment));
  if (!is_result) {
    return {s.input + segment.begin, static_cast<std::size_t>(segment.size())};
  }
  if (!operation.finished) {
    copied.assign(s.output + segment.begin, s.output + segment.end);
    return {};
  }
  copied.resize(segment.size());
  for (const Kept& kept : operation.kept) {
    const Range held = intersection(kept.range, segment);
    if (!held.empty()) {
      std::memcpy(copied.data() + (held.begin - segment.begin), kept.buffer.data() + (held.begin - kept.range.begin),
                  held.size());
    }
  }
  return {};
}

// --- Until all have it ---

Status Worker::Impl::receive_have(const LinkState& link) {
  std::vector<std::uint64_t> numbers;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode_numbers(payload, numbers); !status.ok()) {
    return status;
  }
  for (std::uint64_t number : numbers) {
    Operation* operation = find_any(number);
    if (operation == nullptr || (operation->failed_here && !operation->finished)) {
      continue;
    }
    const bool takes_part = std::any_of(operation->parts.begin(), operation->parts.end(),
                                        [&link](const Part& part) { return part.server == link.index; });
    if (!takes_part) {
      return refused("HAVE of '" + operation->name() + "' from a server that has no part in it");
    }
    if (!has_result_of(*operation, operation->part_of(link.index))) {
      return refused("HAVE of '" + operation->name() + "', whose result has not come");
    }
    settle(*operation, link.index);
  }
  return {};
}

// What all have, this worker has too: now, or since an epoch before.
bool Worker::Impl::has_result_of(const Operation& operation, const Part& part) const {
  return operation.finished || operation.gathers() || takes_ring(operation) || part.done ||
         operation.have.contains(intersection(part.shard, operation.wanted));
}

// All members have what they get from this server.
void Worker::Impl::settle(Operation& operation, std::uint32_t server) {
  Part& settled = operation.part_of(server);
  settled.settled = true;
  settled.kept.clear();
  // Nobody needs the rest of it, so the array is not the worker's any longer once the handle is done.
  settled.sent = {settled.runs.size(), 0};
  pump_others(operation, server);
  if (!operation.kept.empty()) {
    forget_kept(operation);
  }
  if (operation.finished) {
    if (std::all_of(operation.parts.begin(), operation.parts.end(), [](const Part& part) { return part.settled; })) {
      forget(operation.number);
    }
    return;
  }
  operation.progress = now_;
  if (!operation.gathers() && !takes_ring(operation)) {
    settled.done = true;
    end_if_done(operation);
  }
}

// Of what was kept from epochs before, what all have by now.
void Worker::Impl::forget_kept(Operation& operation) {
  RangeSet all;
  for (const Part& part : operation.parts) {
    if (part.settled) {
      all.add(part.shard);
    }
  }
  std::erase_if(operation.kept, [&all](const Kept& kept) { return all.contains(kept.range); });
}

void Worker::Impl::forget(std::uint64_t number) {
  const auto finished = finished_.extract(number);
  detach(*finished.mapped());
  for (Part& part : finished.mapped()->parts) {
    answered_part(part);
  }
  say_goodbye_if_done();
}

// Without waiting for those who may need them.
void Worker::Impl::forget_finished(const std::function<bool(const Operation&)>& which) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, operation] : finished_) {
    if (which(*operation)) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (std::uint64_t number : numbers) {
    const auto found = finished_.find(number);
    if (found == finished_.end()) {
      continue;  // forgotten with the goodbye that the one before allowed
    }
    const Operation& operation = *found->second;
    if (operation.reopened && operation.failure.ok() && broken_.ok()) {
      // Whoever lacks it would wait in vain.
      Status why = Status::error(Code::peer_left,
                                 "'" + operation.name() + "' had ended on " + rank_text(rank_, config_) +
                                     ", which has left, when a server was lost before others had its result",
                                 static_cast<std::int32_t>(rank_));
      send_to_server(operation.home, {.type = Type::fail, .operation = number},
                     wire::encode(wire::Failure{std::move(why)}));
      for (const Part& part : operation.parts) {
        send_to_server(part.server, {.type = Type::drop, .operation = number});
      }
    }
    forget(number);
  }
}

// --- Telling servers what is here ---

// A result of this server is about to be counted.
void Worker::Impl::acknowledge_soon(worker::ServerLink& server) {
  if (server.results == server.acknowledged) {
    server.unknown_since = now_;
  }
  acknowledge_at_ = std::min(acknowledge_at_, server.unknown_since + acknowledge_after);
}

// The home keeps what others may still fail until it knows. That goes along with the next frame to it.
void Worker::Impl::drop_soon(std::uint32_t home, std::uint64_t number) {
  worker::ServerLink& link = servers_[home];
  if (link.ended.empty()) {
    link.ended_since = now_;
  }
  link.ended.push_back(number);
  acknowledge_at_ = std::min(acknowledge_at_, link.ended_since + acknowledge_after);
}

void Worker::Impl::tell_ended(std::uint32_t server) {
  if (servers_[server].ended.empty()) {
    return;
  }
  for (const std::uint64_t number : std::exchange(servers_[server].ended, {})) {
    send_to_server(server, {.type = Type::drop, .flags = wire::flag_well, .operation = number});
  }
}

// Tells the servers of the results that had come by then, and of what had ended, unless a frame since has.
void Worker::Impl::acknowledge(Time came_by) {
  acknowledge_at_ = never;
  for (std::uint32_t server = 0; server < config_.servers() && !goodbye_said_; ++server) {
    const worker::ServerLink& link = servers_[server];
    const Time unknown_since = std::min(link.results == link.acknowledged ? never : link.unknown_since,
                                        link.ended.empty() ? never : link.ended_since);
    if (unknown_since <= came_by && !link.ended.empty()) {
      tell_ended(server);
    } else if (unknown_since <= came_by) {
      send_to_server(server, {.type = Type::have});
    } else if (unknown_since != never) {
      acknowledge_at_ = std::min(acknowledge_at_, unknown_since + acknowledge_after);
    }
  }
}

}  // namespace shoal
