// How a node goes on when a server is lost: docs/protocol.md, section 8, and docs/decisions/server-loss.md.
//
// A new epoch is a new beginning for everything that has no answer. The node holds all that is needed for it:
//   * the arrays of operations whose handles are open: what was answered is a result there, the rest a contribution;
//   * of operations whose handles are done, until all members have what they get: a copy of a small contribution, the
//     results that others may lack, or only that it has ended, and how.
// What all members have, servers say with HAVE and in the RESULTs of a large all-reduce.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "protocol/node_impl.h"
#include "wire/epoch.h"

namespace shoal {

using node::Kept;
using wire::Type;

namespace {

// How long a server may not know that a result is here, unless something else is sent to it.
constexpr Time acknowledge_after = second / 200;

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace

// --- A new epoch ---

Status Node::Impl::receive_epoch(const LinkState& link) {
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
  if (window_ != 0) {
    set_window(window_);
  }
  return {};
}

// What is not over for all members, in the order of numbers, once it is noted how far it has come. Frames that are
// still on their way to the network need its arrays no more.
std::vector<std::uint64_t> Node::Impl::suspend_operations() {
  std::vector<std::uint64_t> numbers;
  for (auto* operations : {&operations_, &finished_}) {
    for (const auto& [number, operation] : *operations) {
      world_.detach(number);
      note_progress(*operation);
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Also those without a share: they may have had one, and forget what they knew.
void Node::Impl::tell_servers(std::uint8_t flags, const wire::Bytes& epoch) {
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    send_to_server(server, {.type = Type::epoch, .flags = flags}, epoch);
  }
}

void Node::Impl::reset_servers(const std::vector<std::uint32_t>& weights) {
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    // Co-located servers that are not needed any more may be needed again.
    if (weights[server] == 0 && config_.weights[server] > 0 && config_.server_ranks[server] < 0) {
      close_server(server);
    }
  }
  config_.weights = weights;
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    node::ServerLink& link = servers_[server];
    link.window = config_.window_of(server);
    link.credit = link.window.credit;
    link.most_credit = config_.credit_of(server, config_.most_credit());
    link.eager = 0;
    link.unanswered = 0;
    link.admitted.clear();
    link.results = link.acknowledged = 0;
  }
}

void Node::Impl::close_server(std::uint32_t server) {
  node::ServerLink& link = servers_[server];
  if (link.link) {
    links_.erase(*link.link);
    world_.close(*link.link);
  }
  // Blocks of exchanges that it began may still be on their way.
  const std::uint64_t heard = link.exchange_heard;
  link = node::ServerLink{};
  link.exchange_heard = heard;
}

// --- A server that comes back ---

// It may be another process by now, or one that has not heard of several epochs: what connected this node with it is
// gone. Nothing is sent on the new links until the epoch that gives the server a weight.
Status Node::Impl::receive_reconnect(const LinkState& link) {
  wire::Attempt attempt;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode(payload, attempt); !status.ok()) {
    return status;
  }
  const bool lost = attempt.server < config_.servers() && config_.server_ranks[attempt.server] < 0 &&
                    config_.weights[attempt.server] == 0 && config_.first_lane(attempt.server) == attempt.server;
  if (!lost) {
    return refused("RECONNECT to server " + std::to_string(attempt.server) + ", which is not a lost one");
  }
  if (goodbye_said_) {
    return {};
  }
  for (std::uint32_t lane : config_.lanes_of(attempt.server)) {
    close_server(lane);
    servers_[lane].attempt = attempt.number;
  }
  world_.connect_server(attempt.server, attempt.number);
  return {};
}

void Node::Impl::attach_returned(LinkId link, std::uint32_t index, std::uint32_t attempt,
                                 const wire::ServerId& process) {
  node::ServerLink& server = servers_[index];
  if (server.attempt != attempt || server.link || goodbye_said_) {
    world_.close(link);  // too late
    return;
  }
  attach_server(link, index);
  const std::vector<std::uint32_t> lanes = config_.lanes_of(index);
  if (std::all_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) { return servers_[lane].link.has_value(); })) {
    tell_reached({{lanes.front(), attempt}, process}, 0);
  }
}

void Node::Impl::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  if (servers_[server].attempt != attempt) {
    return;
  }
  for (std::uint32_t lane : config_.lanes_of(server)) {
    close_server(lane);
  }
  tell_reached({{server, attempt}, {}}, wire::flag_unreachable);
}

void Node::Impl::tell_reached(const wire::Reached& reached, std::uint8_t flags) {
  for (std::uint32_t lane : config_.lanes_of(reached.attempt.server)) {
    servers_[lane].attempt = 0;
  }
  if (coordinator_ && !goodbye_said_) {
    wire::Bytes bytes = wire::encode(reached);
    const wire::Header header{
        .type = Type::reached, .flags = flags, .length = static_cast<std::uint32_t>(bytes.size())};
    world_.send(*coordinator_, header, std::move(bytes), {}, 0);
  }
}

// What of it is here now, and what of it others may lack.
void Node::Impl::note_progress(Operation& operation) {
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

void Node::Impl::reopen(Operation& operation) {
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
  node::Exchange& exchange = operation.exchange;
  if (exchange.through_home) {
    // Everything comes again through the new home.
    exchange = node::Exchange{};
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

bool Node::Impl::unsized(const Operation& operation) const {
  return operation.reopened && (operation.gathers() || takes_ring(operation)) && !operation.exchange.sizes_known;
}

// What the server lacks of an operation from an epoch before, and what this node lacks of it.
Status Node::Impl::receive_admit(Operation& operation, LinkState& link) {
  Part& part = operation.part_of(link.index);
  operation.progress = now_;
  part.admitted = true;
  servers_[link.index].admitted.push_back(operation.number);
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
    part.sent = part.answered = node::Cursor{};
    part.done = part.runs.empty();
    if (part.done && !operation.finished) {
      end_if_done(operation);
      return {};
    }
  }
  if (!operation.finished) {
    follow_pace(operation);
  }
  return {};
}

// From the array while it is the node's to use, otherwise from what was kept of it.
std::span<const std::byte> Node::Impl::contribution(Operation& operation, Range segment, wire::Bytes& copied) const {
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
    const Range part = intersection(kept.range, segment);
    if (!part.empty()) {
      std::memcpy(copied.data() + (part.begin - segment.begin), kept.buffer.data() + (part.begin - kept.range.begin),
                  part.size());
    }
  }
  return {};
}

// --- What others may need ---

// Its result is about to take the place of what it contributed.
void Node::Impl::keep_input(Operation& operation) {
  if (operation.finished || !operation.contributes() || operation.bytes == 0) {
    return;
  }
  operation.own_input = pool_.take(operation.bytes);
  std::memcpy(operation.own_input.data(), operation.submission.input, operation.bytes);
  operation.submission.input = operation.own_input.data();
}

void Node::Impl::keep_result(Part& part, LinkState& link, Range segment) {
  // What this node sent as the result that it had before is kept already.
  part.kept.push_back({link.payload ? segment : Range{}, std::move(link.payload)});
  while (part.released != link.header.acknowledged && !part.kept.empty()) {
    part.kept.pop_front();
    ++part.released;
  }
}

void Node::Impl::keep_finished(std::unique_ptr<Operation> operation) {
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

Status Node::Impl::receive_have(const LinkState& link) {
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

// What all have, this node has too: now, or since an epoch before.
bool Node::Impl::has_result_of(const Operation& operation, const Part& part) const {
  return operation.finished || operation.gathers() || takes_ring(operation) || part.done ||
         operation.have.contains(intersection(part.shard, operation.wanted));
}

// All members have what they get from this server.
void Node::Impl::settle(Operation& operation, std::uint32_t server) {
  Part& settled = operation.part_of(server);
  settled.settled = true;
  settled.kept.clear();
  // Nobody needs the rest of it, so the array is not the node's any longer once the handle is done.
  settled.sent = {settled.runs.size(), 0};
  RangeSet all;
  for (const Part& part : operation.parts) {
    if (part.settled) {
      all.add(part.shard);
    }
  }
  std::erase_if(operation.kept, [&all](const Kept& kept) { return all.contains(kept.range); });
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

void Node::Impl::forget(std::uint64_t number) {
  world_.detach(number);
  const auto finished = finished_.extract(number);
  for (Part& part : finished.mapped()->parts) {
    answered_part(part);
  }
  say_goodbye_if_done();
}

// Without waiting for those who may need them.
void Node::Impl::forget_finished(const std::function<bool(const Operation&)>& which) {
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

void Node::Impl::acknowledge_soon() {
  if (acknowledge_at_ == never) {
    acknowledge_at_ = now_ + acknowledge_after;
  }
}

void Node::Impl::acknowledge() {
  acknowledge_at_ = never;
  for (std::uint32_t server = 0; server < config_.servers() && !goodbye_said_; ++server) {
    if (servers_[server].results != servers_[server].acknowledged) {
      send_to_server(server, {.type = Type::have});
    }
  }
}

}  // namespace shoal
