// Who has which results, and how a server goes on in a new epoch: docs/protocol/recovery.md, and
// docs/decisions/server-loss.md.
//
// With a new epoch a server forgets everything that it knew of operations: the workers open again what is not over for
// all of its members. Nobody tells it more than that, so all that it says to a worker before the worker's own EPOCH are
// grants that it holds back.
#include <algorithm>
#include <numeric>
#include <utility>

#include "protocol/collectives.h"
#include "protocol/server/impl.h"

namespace shoal {

using server::Contribution;
using server::Piece;
using server::Receipt;
using wire::Type;

namespace {

// A worker is told that all have what it keeps for them with the first frame to it that follows so much later: many
// numbers in one HAVE, and no packet for it alone, which with small arrays would be every third.
constexpr Time tell_settled_along_after = second / 200;

// Where no frame follows, alone.
constexpr Time tell_settled_after = second / 50;

// The numbers of exchanges that an epoch has for itself, so that a server that has begun anew does not give one again.
constexpr std::uint64_t exchanges_an_epoch = std::uint64_t{1} << 28;
constexpr std::uint32_t most_epochs = 1 << 12;

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace

// --- Receipts ---

void Server::Impl::begin_receipt(const Operation& operation) {
  const wire::Opening& attributes = operation.attributes();
  const bool small = attributes.bytes <= config_.small;
  Receipt& receipt = receipts_[operation.serial];
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    receipt.members.emplace_back(operation.group->ranks[i], operation.members[i].number);
  }
  receipt.by_segment = !small && attributes.collective == Collective::all_reduce && !takes_ring(attributes);
  receipt.urgent =
      !small && (attributes.collective == Collective::broadcast || attributes.collective == Collective::reduce_scatter);
}

// A result or sizes are about to be sent, or would be if the link were not gone: then nobody has them.
void Server::Impl::expect_receipt(std::uint64_t serial, std::uint64_t segment) {
  Receipt& receipt = receipts_.at(serial);
  ++receipt.unacknowledged;
  if (receipt.by_segment) {
    receipt.missing.resize(std::max<std::size_t>(receipt.missing.size(), segment - receipt.settled + 1));
    ++receipt.missing[segment - receipt.settled];
  }
}

void Server::Impl::note_sent(std::uint32_t rank, std::uint64_t serial, std::uint64_t segment) {
  worker(rank).unacknowledged.push_back({worker(rank).results_sent, serial, segment});
}

void Server::Impl::end_receipt(std::uint64_t serial) {
  const auto found = receipts_.find(serial);
  if (found != receipts_.end()) {
    found->second.ended = true;
    settle_if_all_have(serial);
  }
}

void Server::Impl::acknowledge(std::uint32_t rank, std::uint32_t count) {
  WorkerState& from = worker(rank);
  const std::uint32_t more = count - std::exchange(from.acknowledged, count);
  for (std::uint32_t i = 0; i < more && !from.unacknowledged.empty(); ++i) {
    const server::Unacknowledged one = from.unacknowledged.front();
    from.unacknowledged.pop_front();
    const auto found = receipts_.find(one.serial);
    if (found == receipts_.end()) {
      continue;
    }
    Receipt& receipt = found->second;
    --receipt.unacknowledged;
    if (receipt.by_segment) {
      --receipt.missing[one.segment - receipt.settled];
      settle_segments(one.serial, receipt);
    }
    settle_if_all_have(one.serial);
  }
}

void Server::Impl::settle_segments(std::uint64_t serial, Receipt& receipt) {
  const auto found = operations_.find(serial);
  Operation* operation = found != operations_.end() && found->second->resumed ? found->second.get() : nullptr;
  while (!receipt.missing.empty() && receipt.missing.front() == 0) {
    for (std::size_t i = 0; operation != nullptr && i < operation->members.size(); ++i) {
      operation->settled_for[i] += operation->is_answered(i, receipt.settled) ? 1 : 0;
    }
    receipt.missing.pop_front();
    ++receipt.settled;
  }
}

// Of the results that the member has of it, how many all have who get them: what it need not keep.
std::uint32_t Server::Impl::settled_segments(const Operation& operation, std::size_t member) const {
  const Receipt& receipt = receipts_.at(operation.serial);
  if (!receipt.by_segment) {
    return 0;
  }
  return static_cast<std::uint32_t>(operation.resumed ? operation.settled_for[member] : receipt.settled);
}

void Server::Impl::settle_if_all_have(std::uint64_t serial) {
  const auto found = receipts_.find(serial);
  if (!found->second.ended || found->second.unacknowledged > 0) {
    return;
  }
  const Receipt receipt = std::move(found->second);
  receipts_.erase(found);
  for (const auto& [rank, number] : receipt.members) {
    tell_settled(rank, number, receipt.urgent);
  }
}

void Server::Impl::tell_settled(std::uint32_t rank, std::uint64_t number, bool now) {
  WorkerState& to = worker(rank);
  if (!to.link || to.left) {
    return;
  }
  if (to.settled.empty()) {
    to.settled_since = now_;
  }
  to.settled.push_back(number);
  if (now || to.settled.size() >= wire::have_at_once) {
    send_settled(rank);
  } else if (tell_settled_at_ == never) {
    tell_settled_at_ = now_ + tell_settled_after;
  }
}

void Server::Impl::send_settled(std::uint32_t rank) {
  const std::vector<std::uint64_t> numbers = std::exchange(worker(rank).settled, {});
  if (!numbers.empty() && !worker(rank).left) {
    send(rank, {.type = Type::have}, wire::encode_numbers(numbers));
  }
}

void Server::Impl::send_settled_along(std::uint32_t rank) {
  const WorkerState& to = worker(rank);
  if (!to.settled.empty() && now_ - to.settled_since >= tell_settled_along_after) {
    send_settled(rank);
  }
}

// --- A new epoch ---

Status Server::Impl::receive_epoch(std::uint32_t rank) {
  WorkerState& from = worker(rank);
  if ((from.header.flags & wire::flag_reopened) != 0) {
    from.reopened = true;
    settle_what_all_have();
    return {};
  }
  wire::Epoch epoch;
  const wire::ConstBytes payload(from.payload.data(), from.payload.size());
  if (Status status = wire::decode(payload, epoch); !status.ok()) {
    return status;
  }
  const bool works = epoch.weights.size() == config_.weights.size() &&
                     std::any_of(epoch.weights.begin(), epoch.weights.end(), [](std::uint32_t w) { return w > 0; });
  if (!works || (from.header.epoch == epoch_ && epoch.weights != config_.weights)) {
    return refused("EPOCH " + std::to_string(from.header.epoch) + " with weights that cannot be");
  }
  if (from.header.epoch > epoch_) {
    begin_epoch(from.header.epoch, epoch.weights);
  }
  from.epoch = from.header.epoch;
  from.reopened = false;
  if (from.epoch == epoch_ && from.credit < credit_) {
    grant(rank, credit_ - std::exchange(from.credit, credit_));
  }
  // What was said before may have come too early for it, or have been thrown away with all else of an epoch before.
  if (from.epoch == epoch_ && (competing_ || from.told_to_compete)) {
    tell_to_compete(rank);
  }
  return {};
}

void Server::Impl::begin_epoch(std::uint32_t epoch, const std::vector<std::uint32_t>& weights) {
  epoch_ = epoch;
  next_exchange_ = std::max(next_exchange_, (epoch % most_epochs) * exchanges_an_epoch + 1);
  config_.weights = weights;
  window_ = config_.window_of(index_);
  credit_ = wanted_credit_ = window_.credit;
  operations_.clear();
  serials_.clear();
  untold_.clear();
  receipts_.clear();
  alarms_.clear();
  table_bytes_ = groups_bytes_;
  tell_settled_at_ = never;
  // What is being sent still is; nobody is answered when it has been.
  std::erase_if(outgoing_, [](const auto& entry) { return entry.second.unsent == 0; });
  for (auto& [token, outgoing] : outgoing_) {
    outgoing.answers_root = false;
  }
  for (WorkerState& one : workers_) {
    one.operations.clear();
    one.outstanding = 0;
    one.credit = credit_;
    one.eager = 0;
    one.results_sent = one.acknowledged = 0;
    one.unacknowledged.clear();
    one.settled.clear();
    one.broadcasting.clear();
  }
}

// Whether the member has all that it gets from here, and knows that it was never the only one to open it.
bool Server::Impl::is_complete(const Member& member) const {
  const wire::Opening& opening = member.opening;
  if (opening.finished || opening.exchange != 0) {
    return true;
  }
  return !opening.have.empty() && RangeSet(opening.have).contains(shard_for(opening));
}

bool Server::Impl::all_complete(const Operation& operation) const {
  return std::all_of(operation.members.begin(), operation.members.end(),
                     [&](const Member& member) { return !member.opened || is_complete(member); });
}

bool Server::Impl::has_results(const Operation& operation) const {
  return operation.attributes().bytes > config_.small &&
         std::any_of(operation.members.begin(), operation.members.end(),
                     [](const Member& member) { return member.opening.finished || !member.opening.have.empty(); });
}

// Members that have all forget an operation when they know that the others have all, too. So when all of an operation's
// members have opened again what was open there, and none of those who have opened it lacks anything, it is over for
// the rest. A member whose link broke may lack it nevertheless, and open it at another server in the next epoch.
void Server::Impl::settle_what_all_have() {
  if (epoch_ == 0) {
    return;
  }
  const auto has_reopened = [this](std::uint32_t rank) {
    const WorkerState& one = workers_[rank];
    return one.left || one.absence != Code::ok || (one.epoch == epoch_ && one.reopened && !one.lost);
  };
  std::vector<std::uint64_t> serials;
  for (const auto& [serial, operation] : operations_) {
    const std::vector<std::uint32_t>& ranks = operation->group->ranks;
    if (operation->state == Operation::State::gathering && all_complete(*operation) &&
        std::all_of(ranks.begin(), ranks.end(), has_reopened)) {
      serials.push_back(serial);
    }
  }
  std::sort(serials.begin(), serials.end());
  for (std::uint64_t serial : serials) {
    settle(*operations_.at(serial));
  }
}

void Server::Impl::settle(Operation& operation) {
  set_alarm(operation, never);
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    if (operation.members[i].opened) {
      tell_settled(operation.group->ranks[i], operation.members[i].number, true);
    }
  }
  const wire::Opening& attributes = operation.attributes();
  if (!is_gather(attributes.collective) && !takes_ring(attributes)) {
    remove(operation);
    return;
  }
  // Blocks may still go from worker to worker, and one of them may fail it.
  operation.state = Operation::State::exchanging;
  for (Member& member : operation.members) {
    member.inline_data = Contribution{};
  }
  release_finished(operation);
  remove_if_done(operation);
}

// Where in the shard it may matter who has what: the ends of every range that a member has, or wants.
std::vector<std::uint64_t> Server::Impl::cuts_of(const Operation& operation, const std::vector<RangeSet>& have) {
  const Range shard = operation.shard;
  std::vector<std::uint64_t> cuts{shard.begin, shard.end};
  const auto cut = [&](Range range) {
    const Range inside = intersection(range, shard);
    cuts.push_back(inside.empty() ? shard.begin : inside.begin);
    cuts.push_back(inside.empty() ? shard.begin : inside.end);
  };
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    std::for_each(have[i].ranges().begin(), have[i].ranges().end(), cut);
    cut(operation.wanted(i));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// The pieces of the shard that somebody lacks, each alike for all members: who lacks it, and who has it where one can
// help another out.
std::vector<Piece> Server::Impl::missing_pieces(const Operation& operation) {
  const std::size_t size = operation.members.size();
  std::vector<RangeSet> have;
  for (const Member& member : operation.members) {
    const wire::Opening& opening = member.opening;
    have.emplace_back(opening.finished ? std::vector<Range>{{0, opening.bytes}} : opening.have);
  }
  const std::vector<std::uint64_t> cuts = cuts_of(operation, have);
  const bool shared = operation.attributes().collective == Collective::all_reduce;
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at + 1 < cuts.size(); ++at) {
    Piece piece{{cuts[at], cuts[at + 1]}, std::nullopt, false, std::vector<bool>(size)};
    bool missing = false;
    for (std::size_t i = 0; i < size; ++i) {
      const bool has = have[i].contains(piece.range);
      piece.receives[i] = !has;
      missing = missing || !has;
      piece.needs_data = piece.needs_data || (!has && !intersection(piece.range, operation.wanted(i)).empty());
      if (has && shared && !piece.source) {
        piece.source = i;
      }
    }
    if (!missing) {
      continue;
    }
    const bool same = !pieces.empty() && pieces.back().range.end == piece.range.begin &&
                      pieces.back().source == piece.source && pieces.back().needs_data == piece.needs_data &&
                      pieces.back().receives == piece.receives;
    if (same) {
      pieces.back().range.end = piece.range.end;
    } else {
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

// Tells every member which of these pieces it sends and which it is answered.
void Server::Impl::ask_for(Operation& operation, const std::vector<Piece>& pieces) {
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    std::vector<wire::Run> runs;
    for (const Piece& piece : pieces) {
      const bool sends = piece.source ? *piece.source == i : piece.needs_data && operation.is_contributor(i);
      if (sends || piece.receives[i]) {
        runs.push_back({piece.range, sends, piece.receives[i]});
      }
    }
    Member& member = operation.members[i];
    member.inline_data = Contribution{};
    member.next = operation.next_of(i, 0);
    answer(operation, i, 0);
    send(operation.group->ranks[i], {.type = Type::admit, .flags = wire::flag_resumed, .operation = member.number},
         wire::encode(runs));
  }
}

// Everybody has opened it, and some have results: asks for what is missing, from those who have it where there is one.
void Server::Impl::resume(Operation& operation) {
  const std::vector<Piece> pieces = missing_pieces(operation);
  operation.resumed = true;
  operation.settled_for.assign(operation.members.size(), 0);
  for (const Piece& piece : pieces) {
    for (std::uint64_t begin = piece.range.begin; begin < piece.range.end; begin += operation.segment) {
      const std::uint64_t end = std::min(begin + operation.segment, piece.range.end);
      operation.pieces.push_back({{begin, end}, piece.source, piece.needs_data, piece.receives});
    }
  }
  operation.segments = operation.pieces.size();
  tell_untold();
  ask_for(operation, pieces);
  if (operation.segments == 0) {
    const std::uint64_t serial = operation.serial;
    end_flow(operation);
    end_receipt(serial);
    return;
  }
  std::vector<std::uint64_t> idle;
  for (std::uint64_t number = 0; number < operation.segments; ++number) {
    if (!operation.pieces[number].needs_data) {
      idle.push_back(number);
    }
  }
  // The last of them may end the operation.
  for (std::uint64_t number : idle) {
    finish_segment(operation, number, server::Segment{operation.segment_range(number), {}, 0});
  }
}

}  // namespace shoal
