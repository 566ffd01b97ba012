// The worker machine's events: links, headers and payloads. What follows from a loss or a goodbye is in
// losses.cpp, how operations are opened and ended in operations.cpp, blocks between workers in
// block_transfer.cpp.
#include "protocol/worker/worker.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/limits.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/worker/impl.h"
#include "wire/bytes.h"
#include "wire/epoch.h"

namespace shoal {

using wire::Header;
using wire::Type;
using worker::refused;

Worker::Worker(const JobConfig& config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool)
    : impl_(std::make_unique<Impl>(config, rank, world, pool)) {}
Worker::~Worker() = default;
void Worker::attach_server(LinkId link, std::uint32_t index) { impl_->attach_server(link, index); }
void Worker::attach_coordinator(LinkId link) { impl_->attach_coordinator(link); }
void Worker::attach_peer(LinkId link, std::uint32_t rank) { impl_->attach_peer(link, rank); }
void Worker::peer_unreachable(std::uint32_t rank, const std::string& why) { impl_->report_rank(rank, why); }
void Worker::attach_returned(LinkId link, std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process) {
  impl_->attach_returned(link, index, attempt, process);
}
void Worker::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  impl_->server_unreachable(server, attempt);
}
std::uint32_t Worker::make_group(std::vector<std::uint32_t> ranks, const std::string& name) {
  std::vector<std::uint32_t> needed = ranks;
  return impl_->make_group(std::move(ranks), std::move(needed), name);
}
std::uint32_t Worker::make_group_of_nodes(std::vector<std::uint32_t> members, std::vector<std::uint32_t> needed,
                                          const std::string& name) {
  // Those after the first have names of their own kind: groups of all ranks in two orders may have the same first ranks
  // in the same order, and so may a group of these ranks alone, and all of them may be made in any order.
  std::string own_name = name;
  if (impl_->has_made_groups()) {
    const Hash128 order = group_id(needed, "", 0);
    own_name.append(reinterpret_cast<const char*>(order.bytes.data()), order.bytes.size());
  }
  return impl_->make_group(std::move(members), std::move(needed), own_name);
}
void Worker::submit(Submission submission) { impl_->submit(std::move(submission)); }
void Worker::contributed(std::uint64_t handle, Range range) { impl_->contributed(handle, range); }
void Worker::set_window(const CongestionController::Setting& window) { impl_->set_window(window); }
void Worker::leave() { impl_->leave(); }
const Hash128& Worker::id_of(std::uint32_t group) const { return impl_->id_of(group); }
Status Worker::loss_of(std::uint32_t group) const { return impl_->loss_of(group); }
const std::vector<std::pair<std::uint32_t, Status>>& Worker::lost() const { return impl_->lost(); }
const Status& Worker::end_of_job() const { return impl_->end_of_job(); }
bool Worker::left() const { return impl_->left(); }
bool Worker::serves() const { return impl_->serves(); }
void Worker::abort(const std::string& reason) { impl_->abort(reason); }
Placement Worker::on_header(LinkId link, const Header& header) { return impl_->on_header(link, header); }
Buffer Worker::spare(std::size_t bytes) { return impl_->spare(bytes); }
Status Worker::on_payload(LinkId link) { return impl_->on_payload(link); }
void Worker::on_sent(Token token) { impl_->on_sent(token); }
void Worker::on_summed(Token token) { impl_->on_summed(token); }
void Worker::on_lost(LinkId link, const Status& why) { impl_->on_lost(link, why); }
void Worker::on_time(Time now) { impl_->on_time(now); }
Time Worker::deadline() const { return impl_->deadline(); }
std::size_t Worker::open_operations() const { return impl_->open_operations(); }

Worker::Impl::Impl(const JobConfig& config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool)
    : config_(config),
      rank_(rank),
      world_(world),
      pool_(pool),
      servers_(config.servers()),
      peers_(config.size()),
      congestion_(config) {
  std::vector<std::uint32_t> all(config.size());
  std::iota(all.begin(), all.end(), 0U);
  std::vector<std::uint32_t> needed = all;
  make_group(std::move(all), std::move(needed), "");
  for (std::uint32_t index = 0; index < config.servers(); ++index) {
    begin_window(index);
  }
}

void Worker::Impl::attach_server(LinkId link, std::uint32_t index) {
  servers_[index].link = link;
  links_[link] = LinkState{LinkState::Kind::server, index, {}, {}};
}

void Worker::Impl::attach_coordinator(LinkId link) {
  coordinator_ = link;
  links_[link] = LinkState{LinkState::Kind::coordinator, 0, {}, {}};
}

void Worker::Impl::attach_peer(LinkId link, std::uint32_t rank) {
  if (peers_[rank].link) {
    world_.close(link);  // one is enough, and the loss of either would count as the rank's
    return;
  }
  peers_[rank].link = link;
  links_[link] = LinkState{LinkState::Kind::peer, rank, {}, {}};
  std::vector<std::uint64_t> waiting;
  for (const auto& [exchange, number] : exchanges_) {
    waiting.push_back(number);
  }
  std::sort(waiting.begin(), waiting.end());
  for (std::uint64_t number : waiting) {
    Operation& operation = *find(number);
    if (const auto member = operation.group->index_of(rank)) {
      start_blocks(operation, *member);
    }
  }
}

Placement Worker::Impl::on_header(LinkId link, const Header& header) {
  LinkState& state = links_.at(link);
  const bool from_server = state.kind == LinkState::Kind::server;
  Status status;
  if (header.epoch > (from_server ? epoch_ : 0) && header.type != Type::epoch) {
    status = refused("epoch " + std::to_string(header.epoch) + " has not been announced");
  } else if (from_server) {
    status = check_server_header(state, header);
  } else if (state.kind == LinkState::Kind::peer) {
    status = check_peer_header(state, header);
  } else {
    status = check_coordinator_header(header);
  }
  if (!status.ok()) {
    return {std::move(status), nullptr};
  }
  state.header = header;
  state.payload = header.length > 0 ? pool_.take(header.length) : Buffer();
  return {{}, state.payload.data(), &state.payload};
}

Status Worker::Impl::check_coordinator_header(const Header& header) const {
  std::size_t limit = 0;
  switch (header.type) {
    case Type::lost:
      limit = limits::text_bytes + 16;
      break;
    case Type::epoch:
      limit = wire::epoch_limit(config_.servers());
      break;
    case Type::reconnect:
      limit = wire::attempt_bytes;
      break;
    case Type::probe:
    case Type::circle:
      limit = wire::circle_bytes + limits::text_bytes + 16;
      break;
    case Type::ended:
      break;
    default:
      return refused(std::string(wire::name_of(header.type)) + " from the coordinator");
  }
  return header.length <= limit
             ? Status{}
             : refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) + " bytes");
}

Status Worker::Impl::check_server_header(const LinkState& link, const Header& header) {
  const std::size_t size = config_.size();
  const auto at_most = [&header](std::size_t limit) {
    return header.length <= limit
               ? Status{}
               : refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) + " bytes");
  };
  if (header.epoch < epoch_) {
    // It was on its way when the epoch began, whatever it was.
    return at_most(std::max({static_cast<std::size_t>(std::max(config_.segment, config_.small)), limits::text_bytes + 8,
                             8 + 8 * size, wire::runs_limit()}));
  }
  const bool of_one = header.type != Type::grant && header.type != Type::have && header.type != Type::window;
  if (of_one && (header.operation == 0 || header.operation >= next_number_)) {
    return refused(std::string(wire::name_of(header.type)) + " for operation " + std::to_string(header.operation) +
                   ", which was never opened");
  }
  Operation* operation = of_one ? find_going_on(header.operation) : nullptr;
  const bool takes_part =
      operation != nullptr && std::any_of(operation->parts.begin(), operation->parts.end(),
                                          [&link](const Part& part) { return part.server == link.index; });
  if (operation != nullptr && !takes_part) {
    return refused(std::string(wire::name_of(header.type)) + " for '" + operation->name() +
                   "' from a server that has no part in it");
  }
  switch (header.type) {
    case Type::result:
      return operation == nullptr || operation->failed_here ? at_most(std::max(config_.segment, config_.small))
                                                            : check_result(*operation, link.index, header);
    case Type::admit:
      if (operation != nullptr && !operation->failed_here && !awaits_admission(*operation, link.index, header)) {
        return refused("ADMIT of '" + operation->name() + "', for which nothing is owed");
      }
      return at_most((header.flags & wire::flag_resumed) != 0 ? wire::runs_limit() : 0);
    case Type::grant:
      return at_most(0);
    case Type::window:
      return header.credit == 0 ? at_most(0) : refused("WINDOW with credit from a server");
    case Type::have:
      return at_most(8 * wire::have_at_once);
    case Type::fail:
      return at_most(limits::text_bytes + 8);
    case Type::sizes:
      return at_most(8 + 8 * size);
    case Type::late:
      return at_most(wire::late_limit());
    default:
      return refused(std::string(wire::name_of(header.type)) + " from a server");
  }
}

// Whether the server may ask for this rank's contribution now, or say what is missing.
bool Worker::Impl::awaits_admission(Operation& operation, std::uint32_t server, const Header& header) const {
  const Part& part = operation.part_of(server);
  if (operation.gathers() || takes_ring(operation) || part.admitted || part.resumed || part.done) {
    return false;
  }
  // Its array is the application's again, and nothing of it was kept, since nobody can need it.
  if (operation.finished && operation.contributes() && operation.bytes > 0 && !operation.shares_results(config_) &&
      !operation.own_input) {
    return false;
  }
  return (header.flags & wire::flag_resumed) != 0 ? epoch_ > 0 : operation.contributes() && !part.all_sent();
}

Status Worker::Impl::check_result(Operation& operation, std::uint32_t server, const Header& header) const {
  const Part& part = operation.part_of(server);
  const auto wrong = [&operation] {
    return refused("RESULT of '" + operation.name() + "' that is not the next segment");
  };
  if (part.done || (header.length > 0 && header.dtype != operation.submission.dtype)) {
    return wrong();
  }
  if (operation.gathers()) {
    const bool whole = operation.exchange.through_home && header.offset == 0 &&
                       header.length == operation.wanted.size() && (header.flags & wire::flag_last) != 0;
    return whole && header.length <= config_.small ? Status{} : wrong();
  }
  const Cursor at = part.next_to_answer();
  const Range segment = part.segment_at(at);
  const bool there = at.run < part.runs.size();
  const bool sends = there && part.runs[at.run].sends;
  const bool receives = there && part.runs[at.run].receives && !operation.finished;
  const Range expected = receives ? intersection(segment, operation.wanted) : Range{segment.begin, segment.begin};
  const bool contributed = !sends || Cursor{at.run, segment.end} <= part.sent;
  const bool last = !part.resumed && segment.end == part.shard.end;
  const bool next = there && contributed && header.length == expected.size() &&
                    header.offset == (expected.empty() ? segment.begin : expected.begin) &&
                    ((header.flags & wire::flag_last) != 0) == last;
  return next ? Status{} : wrong();
}

Status Worker::Impl::on_payload(LinkId link) {
  LinkState& state = links_.at(link);
  Status status;
  switch (state.kind) {
    case LinkState::Kind::server:
      status = receive_from_server(state);
      break;
    case LinkState::Kind::coordinator:
      status = receive_from_coordinator(state);
      break;
    case LinkState::Kind::peer:
      status = receive_from_peer(state);
      break;
  }
  state.payload = Buffer();
  return status;
}

Status Worker::Impl::receive_from_server(LinkState& link) {
  if (link.header.epoch < epoch_) {
    return {};  // its epoch may have ended while it came
  }
  worker::ServerLink& from = servers_[link.index];
  from.credit += link.header.credit;
  if (from.credit > from.most_credit) {
    return refused("more credit than there can be");
  }
  if (link.header.type == Type::result || link.header.type == Type::sizes) {
    acknowledge_soon(from);
    ++from.results;
    from.last_result = now_;
  }
  if (link.header.type == Type::sizes) {
    return receive_sizes(link.header.operation, link);
  }
  if (link.header.type == Type::have) {
    return receive_have(link);
  }
  if (link.header.type == Type::window) {
    world_.compete(*from.link, (link.header.flags & wire::flag_competing) != 0);
    return {};
  }
  Operation* operation = find_going_on(link.header.operation);
  Status status;
  // Frames for operations that have ended count for their credit only.
  if (link.header.type == Type::late) {
    status = receive_late(link);
  } else if (operation != nullptr && link.header.type == Type::fail) {
    status = operation->finished ? Status{} : receive_failure(*operation, link);
  } else if (operation != nullptr && !operation->failed_here) {
    switch (link.header.type) {
      case Type::admit:
        status = receive_admit(*operation, link);
        break;
      case Type::result:
        receive_result(*operation, link);
        break;
      default:
        break;
    }
  }
  pump(link.index);
  return status;
}

void Worker::Impl::receive_result(Operation& operation, LinkState& link) {
  operation.progress = now_;
  Part& part = operation.part_of(link.index);
  const Cursor at = part.next_to_answer();
  const Range segment = part.segment_at(at);
  const Header& header = link.header;
  if (!operation.gathers()) {
    if (part.runs[at.run].sends && part.eager == 0) {
      part.unanswered -= segment.size();
      servers_[part.server].unanswered -= segment.size();
    }
    part.answered = {at.run, segment.end};
  }
  answered_eager(part);
  if (!part.admitted && !operation.gathers() && !part.all_sent()) {
    admitted(operation, part);  // no ADMIT has said it
  }
  if (operation.bytes <= config_.small) {
    keep_input(operation);
  }
  if (header.length > 0) {
    // The first moment at which the result replaces the contribution: it is whole.
    std::memcpy(operation.submission.output + (header.offset - operation.wanted.begin), link.payload.data(),
                header.length);
  }
  if (operation.shares_results(config_) && !operation.finished) {
    keep_result(part, link, segment);
  }
  if (operation.submission.streamed && header.length > 0) {
    world_.received(operation.submission.handle, segment);
  }
  if (operation.controlled && congestion_.answered(segment.size(), now_)) {
    if (const auto window = congestion_.decide(retransmissions(), now_)) {
      set_window(*window);
    }
  }
  part.done = part.resumed ? part.segment_at(part.next_to_answer()).empty() : (header.flags & wire::flag_last) != 0;
  const bool is_waited_for =
      part.done && operation.bytes > config_.small && operation.submission.collective != Collective::all_reduce;
  if (!operation.finished) {
    end_if_done(operation);
  }
  if (is_waited_for) {
    acknowledge(now_);  // by a handle of somebody's
  }
}

Status Worker::Impl::receive_failure(Operation& operation, const LinkState& link) {
  wire::Failure failure;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode(payload, failure); !status.ok()) {
    return status;
  }
  if (link.index != operation.home && failure.status.code == Code::limit) {
    // It has no room for it. That it fails is the home's to say, to all.
    send_to_server(operation.home, {.type = Type::fail, .operation = operation.number}, wire::encode(failure));
    return {};
  }
  if (link.index != operation.home) {
    return refused("FAIL of '" + operation.name() + "' from a server that is not its home");
  }
  operation.failure = failure.status;
  failure.status.message = std::string(name_of(operation.submission.collective)) + " " + failure.status.message;
  end(operation, std::move(failure.status));
  return {};
}

Status Worker::Impl::receive_from_coordinator(LinkState& link) {
  if (link.header.type == Type::ended) {
    if (std::exchange(ended_, true)) {
      return refused("ENDED a second time");
    }
    world_.ended();
    return {};
  }
  if (link.header.type == Type::epoch) {
    return receive_epoch(link);
  }
  if (link.header.type == Type::reconnect) {
    return receive_reconnect(link);
  }
  if (link.header.type == Type::probe) {
    return receive_probe(link);
  }
  if (link.header.type == Type::circle) {
    return receive_circle(link);
  }
  wire::Loss loss;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode(payload, loss); !status.ok()) {
    return status;
  }
  if (loss.kind == wire::Loss::Kind::server) {
    break_job(std::move(loss.status));
  } else if (loss.index < config_.size()) {
    lost_rank(loss.index, std::move(loss.status));
  }
  return {};
}

void Worker::Impl::on_sent(Token token) {
  if (token == worker::goodbye) {
    --goodbyes_unsent_;
    return;
  }
  Operation* operation = find(token);
  if (operation != nullptr && operation->unsent > 0) {
    --operation->unsent;
    if (operation->ring) {
      end_ring_if_done(*operation);
    } else {
      end_exchange_if_done(*operation);
    }
  }
}

void Worker::Impl::on_time(Time now) {
  now_ = now;
  const bool asking = inquiry_.until != never;
  while (!checks_.empty() && checks_.begin()->first <= now) {
    Operation& operation = *find(checks_.begin()->second);
    check_again(operation, never);
    check_progress(operation);
  }
  if (!asking && inquiry_.until != never) {
    ask_about_the_rest();
  }
  if (inquiry_.until <= now_ || (inquiry_.until != never && inquiry_.unanswered == 0)) {
    end_inquiry();
  }
  while (!peer_losses_.empty() && peer_losses_.begin()->first <= now) {
    const std::uint32_t rank = peer_losses_.extract(peer_losses_.begin()).value().second;
    if (fail_exchanges_with(rank)) {
      peer_losses_.emplace(now + worker::peer_loss_wait, rank);  // the home may be lost before it hears of it
    }
  }
  if (acknowledge_at_ <= now) {
    acknowledge(now_ - acknowledge_after);
  }
  if (look_at_ <= now) {
    look_for_waits();
  }
  if (give_up_at_ <= now) {
    give_up_at_ = never;
    forget_finished([](const Operation&) { return true; });
  }
}

}  // namespace shoal
