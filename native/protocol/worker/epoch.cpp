// How a worker goes on in a new epoch, after a server was lost or has come back: docs/protocol/recovery.md, and
// docs/decisions/server-loss.md.
//
// It is a new beginning for everything that has no answer, and the worker holds all that is needed for it:
//   * the arrays of operations whose handles are open: what was answered is a result there, the rest a contribution;
//   * of operations whose handles are done, what retained_results.cpp keeps.
#include "wire/epoch.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "protocol/worker/impl.h"

namespace shoal {

using wire::Type;
using worker::refused;

Status Worker::Impl::receive_epoch(const LinkState& link) {
  wire::Epoch epoch;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode(payload, epoch); !status.ok()) {
    return status;
  }
  if (epoch.text.empty()) {
    return refused("EPOCH " + std::to_string(link.header.epoch) + ", which does not say why");
  }
  if (link.header.epoch <= epoch_ || epoch.weights.size() != servers_.size() ||
      std::accumulate(epoch.weights.begin(), epoch.weights.end(), std::uint64_t{0}) == 0) {
    return refused("EPOCH " + std::to_string(link.header.epoch) + ", which cannot follow epoch " +
                   std::to_string(epoch_));
  }
  epoch_ = link.header.epoch;
  if (rank_ == 0) {
    world_.warn(epoch.text);
  }
  const std::vector<std::uint64_t> numbers = suspend_operations();
  reset_servers(epoch.weights);
  inquiry_ = {};
  if (goodbye_said_) {
    return {};
  }
  epoch.text.clear();
  tell_servers(0, wire::encode(epoch));
  reopening_ = true;
  unsized_ = 0;
  for (std::uint64_t number : numbers) {
    reopen(*find_any(number));
  }
  reopening_ = false;
  tell_servers(wire::flag_reopened, {});
  if (window_) {
    set_window(*window_);
  }
  return {};
}

// What is not over for all members, in the order of numbers, once it is noted how far it has come. Frames that are
// still on their way to the network need its arrays no more.
std::vector<std::uint64_t> Worker::Impl::suspend_operations() {
  std::vector<std::uint64_t> numbers;
  for (auto* operations : {&operations_, &finished_}) {
    for (const auto& [number, operation] : *operations) {
      detach(*operation);
      note_progress(*operation);
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Also those without a share: they may have had one, and forget what they knew.
void Worker::Impl::tell_servers(std::uint8_t flags, const wire::Bytes& epoch) {
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    send_to_server(server, {.type = Type::epoch, .flags = flags}, epoch);
  }
}

void Worker::Impl::reset_servers(const std::vector<std::uint32_t>& weights) {
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    // Co-located servers that are not needed any more may be needed again.
    if (weights[server] == 0 && config_.weights[server] > 0 && config_.server_ranks[server] < 0) {
      close_server(server);
    }
  }
  config_.weights = weights;
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    worker::ServerLink& link = servers_[server];
    begin_window(server);
    link.eager = 0;
    link.unanswered = 0;
    link.admitted.clear();
    link.results = link.acknowledged = 0;
    link.ended.clear();
  }
}

void Worker::Impl::close_server(std::uint32_t server) {
  worker::ServerLink& link = servers_[server];
  if (link.link) {
    links_.erase(*link.link);
    world_.close(*link.link);
  }
  // Blocks of exchanges that it began may still be on their way.
  const std::uint64_t heard = link.exchange_heard;
  link = worker::ServerLink{};
  link.exchange_heard = heard;
}

// What of it is here now, and what of it others may lack.
void Worker::Impl::note_progress(Operation& operation) {
  const bool through_servers = operation.bytes > config_.small && !operation.gathers() && !takes_ring(operation);
  for (Part& part : operation.parts) {
    std::move(part.kept.begin(), part.kept.end(), std::back_inserter(operation.kept));
    if (!through_servers) {
      continue;
    }
    if (part.done) {
      operation.have.add(part.shard);
      continue;
    }
    for (std::size_t run = 0; run < part.runs.size() && run <= part.answered.run; ++run) {
      const Range range = part.runs[run].range;
      operation.have.add(run < part.answered.run ? range : intersection(range, {0, part.answered.offset}));
    }
  }
}

void Worker::Impl::reopen(Operation& operation) {
  const bool failed = !operation.failure.ok();
  const bool finished = operation.finished || operation.ending;
  wire::Opening& opening = operation.opening;
  opening.finished = finished;
  if (finished && failed) {
    opening.failed = true;
    opening.code = operation.failure.code;
    opening.rank = operation.failure.rank;
    opening.text = operation.failure.message;
  }
  worker::Exchange& exchange = operation.exchange;
  if (exchange.through_home) {
    // Everything comes again through the new home.
    exchange = worker::Exchange{};
  }
  opening.exchange = exchange.id;
  operation.reopened = true;
  if (!operation.finished && unsized(operation)) {
    ++unsized_;
  }
  opening.have = finished ? std::vector<Range>() : operation.have.ranges();
  operation.parts.clear();
  plan(operation);
  open(operation);
  if (operation.finished) {
    return;
  }
  const bool was_late = std::exchange(operation.timed_out, false) || operation.timing_out;
  operation.timing_out = false;
  if (was_late) {
    check_again(operation, now_);  // the new servers have to be asked
  } else {
    operation.progress = now_;
  }
}

bool Worker::Impl::unsized(const Operation& operation) const {
  return operation.reopened && (operation.gathers() || takes_ring(operation)) && !operation.exchange.sizes_known;
}

// What the server lacks of an operation from an epoch before, and what this worker lacks of it.
Status Worker::Impl::receive_admit(Operation& operation, LinkState& link) {
  Part& part = operation.part_of(link.index);
  operation.progress = now_;
  admitted(operation, part);
  if ((link.header.flags & wire::flag_resumed) != 0) {
    std::vector<wire::Run> runs;
    const wire::ConstBytes payload(link.payload.data(), link.payload.size());
    if (Status status = wire::decode(payload, part.shard, runs); !status.ok()) {
      return status;
    }
    const bool possible = std::all_of(runs.begin(), runs.end(), [&operation](const wire::Run& run) {
      const bool lacked = !operation.finished && !operation.have.touches(run.range);
      return (operation.contributes() || !run.sends) && (lacked || !run.receives);
    });
    if (!possible) {
      return refused("ADMIT of '" + operation.name() + "' with ranges that this rank cannot send or has");
    }
    answered_eager(part);
    part.resumed = true;
    part.runs = std::move(runs);
    part.sent = part.answered = worker::Cursor{};
    part.done = part.runs.empty();
    pump_others(operation, link.index);
    if (part.done && !operation.finished) {
      end_if_done(operation);
    }
  }
  return {};
}

}  // namespace shoal
