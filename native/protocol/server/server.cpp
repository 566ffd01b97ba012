// The server machine's events: links, headers and payloads. What they mean for an operation is in
// operations.cpp, what openings mean in openings.cpp.
#include "protocol/server/server.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/limits.h"
#include "protocol/keys.h"
#include "protocol/server/impl.h"
#include "reduce/reduce.h"

namespace shoal {

using server::Contribution;
using server::Group;
using wire::Header;
using wire::Type;

namespace {

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

// What a group takes beside its members: its place in a table.
constexpr std::size_t group_overhead = 160;

// How long the coordinator's word about a rank whose link broke is waited for. It decides, also when it stood still for
// a while; only of the loss of a rank's goodbye it never hears.
constexpr Time absence_wait = 60 * second;

}  // namespace

Server::Server(const JobConfig& config, std::uint32_t index, ServerWorld& world, BufferPool& pool)
    : impl_(std::make_unique<Impl>(config, index, world, pool)) {}
Server::~Server() = default;
void Server::attach_worker(LinkId link, std::uint32_t rank) { impl_->attach_worker(link, rank); }
Placement Server::on_header(LinkId link, const Header& header) { return impl_->on_header(link, header); }
Buffer Server::spare(std::size_t bytes) { return impl_->spare(bytes); }
Status Server::on_payload(LinkId link) { return impl_->on_payload(link); }
void Server::on_sent(Token token) { impl_->on_sent(token); }
void Server::on_summed(Token token) { impl_->on_summed(token); }
void Server::on_lost(LinkId link, const Status& /*why*/) { impl_->on_lost(link); }
void Server::on_time(Time now) { impl_->on_time(now); }
Time Server::deadline() const { return impl_->deadline(); }
void Server::limit(std::size_t table_bytes, std::uint32_t most_credit) { impl_->limit(table_bytes, most_credit); }
std::size_t Server::operations() const { return impl_->operations(); }
std::size_t Server::table_bytes() const { return impl_->table_bytes(); }

Server::Impl::Impl(const JobConfig& config, std::uint32_t index, ServerWorld& world, BufferPool& pool)
    : config_(config),
      index_(index),
      window_(config.window_of(index)),
      credit_(window_.credit),
      wanted_credit_(window_.credit),
      world_(world),
      pool_(pool),
      workers_(config.size()),
      world_group_(world_group_id(config.size())) {
  auto all = std::make_unique<Group>();
  all->ranks.resize(config.size());
  std::iota(all->ranks.begin(), all->ranks.end(), 0U);
  groups_.emplace(world_group_, std::move(all));
  for (WorkerState& one : workers_) {
    one.credit = credit_;
  }
}

void Server::Impl::attach_worker(LinkId link, std::uint32_t rank) {
  worker(rank).link = link;
  ranks_.emplace(link, rank);
}

Placement Server::Impl::on_header(LinkId link, const Header& header) {
  WorkerState& from = worker(rank_of(link));
  if (Status status = check_header(from, header); !status.ok()) {
    return {std::move(status), nullptr};
  }
  from.heard = now_;
  from.header = header;
  from.payload = header.length > 0 ? pool_.take(header.length) : Buffer();
  return {{}, from.payload.data(), &from.payload};
}

Status Server::Impl::check_header(const WorkerState& from, const Header& header) const {
  if (from.left) {
    return refused(std::string(wire::name_of(header.type)) + " after LEAVE");
  }
  if (header.type == Type::epoch) {
    return check_epoch(from, header);
  }
  if (is_stale(header)) {
    return header.length <= carried_limit() ? Status{} : refused("a frame of an epoch before that is too long");
  }
  const bool of_any = header.type == Type::leave || header.type == Type::group;
  if (!of_any && (header.epoch != epoch_ || from.epoch != epoch_)) {
    return refused("epoch " + std::to_string(header.epoch) + " has not been announced");
  }
  const std::uint32_t unacknowledged = from.results_sent - from.acknowledged;
  if (header.epoch == epoch_ && header.acknowledged - from.acknowledged > unacknowledged) {
    return refused("acknowledges results that were not sent");
  }
  const auto at_most = [&header](std::size_t limit) {
    return header.length <= limit
               ? Status{}
               : refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) +
                         " bytes, at most " + std::to_string(limit) + " are allowed");
  };
  switch (header.type) {
    case Type::open:
      if (from.operations.count(header.operation) > 0) {
        return refused("opens operation " + std::to_string(header.operation) + " twice");
      }
      return at_most(from.reopened ? wire::opening_limit(config_.size(), config_.most_inline()) : carried_limit());
    case Type::data:
      return check_data(from, header);
    case Type::fail:
      return at_most(limits::text_bytes + 8);
    case Type::group:
      return at_most(24 + 4 * static_cast<std::size_t>(config_.size()));
    case Type::drop:
    case Type::leave:
    case Type::ask:
    case Type::have:
      return at_most(0);
    case Type::window:
      return check_window(from, header);
    default:
      return refused(std::string(wire::name_of(header.type)) + " is not for a server");
  }
}

Status Server::Impl::check_data(const WorkerState& from, const Header& header) const {
  const auto found = from.operations.find(header.operation);
  if (found == from.operations.end()) {
    return refused("DATA for operation " + std::to_string(header.operation) + ", which is not open");
  }
  // Who holds the smallest window may send one segment, so that a small operation fits into any.
  if (from.outstanding + std::min(header.length, window_.segment) > from.credit) {
    return refused("DATA of " + std::to_string(header.length) + " bytes is beyond the credit of " +
                   std::to_string(from.credit));
  }
  const Operation& operation = *operations_.at(found->second);
  if (operation.state == Operation::State::failed && header.length <= std::max(config_.segment, config_.small)) {
    return {};  // was on its way; thrown away by receive_data
  }
  const auto rank = static_cast<std::uint32_t>(&from - workers_.data());
  const std::size_t index = *operation.group->index_of(rank);
  const Member& member = operation.members[index];
  // One of an epoch before may be sent by a member that has its result.
  if (operation.state != Operation::State::flowing || (!operation.is_contributor(index) && !operation.resumed)) {
    return refused("DATA for '" + operation.name() + "', which was not asked for");
  }
  if (header.dtype != operation.attributes().dtype) {
    return refused(std::string("DATA in ") + name_of(header.dtype) + " for '" + operation.name() + "'");
  }
  const Range next = member.next < operation.segments ? operation.segment_range(member.next) : Range{};
  if (header.offset != next.begin || header.length != next.size() || header.length == 0) {
    return refused("DATA for '" + operation.name() + "' is not the next segment");
  }
  return {};
}

Status Server::Impl::check_epoch(const WorkerState& from, const Header& header) const {
  const bool ends = (header.flags & wire::flag_reopened) != 0;
  if (ends ? header.epoch != from.epoch || from.reopened : header.epoch <= from.epoch) {
    return refused("EPOCH " + std::to_string(header.epoch) + ", which is not the next");
  }
  return header.length <= (ends ? 0 : wire::epoch_limit(config_.servers()))
             ? Status{}
             : refused("EPOCH of " + std::to_string(header.length) + " bytes");
}

bool Server::Impl::is_stale(const Header& header) const {
  return header.epoch < epoch_ && header.type != Type::leave && header.type != Type::group;
}

std::size_t Server::Impl::carried_limit() const {
  return wire::opening_limit(config_.size(), config_.most_inline()) + 16 * limits::ranges;
}

Status Server::Impl::check_window(const WorkerState& from, const Header& header) const {
  if (&from != workers_.data()) {
    return refused("WINDOW from another than rank 0");
  }
  if (header.length != 0 || header.credit < config_.segment || header.credit > config_.most_credit()) {
    return refused("WINDOW with a credit of " + std::to_string(header.credit) + ", which is not from " +
                   std::to_string(config_.segment) + " to " + std::to_string(config_.most_credit()));
  }
  return {};
}

Status Server::Impl::on_payload(LinkId link) {
  const std::uint32_t rank = rank_of(link);
  WorkerState& from = worker(rank);
  if (from.header.type != Type::epoch) {
    if (is_stale(from.header)) {
      from.payload = Buffer();
      return {};
    }
    if (from.header.epoch == epoch_) {
      acknowledge(rank, from.header.acknowledged);
    }
  }
  switch (from.header.type) {
    case Type::open:
      return receive_open(rank);
    case Type::data:
      return receive_data(rank);
    case Type::fail:
      return receive_fail(rank);
    case Type::group:
      return receive_group(rank);
    case Type::drop:
      receive_drop(rank);
      return {};
    case Type::ask:
      receive_ask(rank);
      return {};
    case Type::leave:
      receive_leave(rank);
      return {};
    case Type::window:
      receive_window(from.header);
      return {};
    case Type::have:
      return {};
    case Type::epoch:
      return receive_epoch(rank);
    default:
      return refused("unexpected frame");
  }
}

Status Server::Impl::receive_data(std::uint32_t rank) {
  WorkerState& from = worker(rank);
  const std::optional<Place> at = place(rank, from.header.operation);
  const std::uint32_t bytes = from.header.length;
  if (!at || at->operation->state == Operation::State::failed) {
    from.payload = Buffer();
    grant(rank, give_back(rank, bytes));
    return {};
  }
  Operation& operation = *at->operation;
  from.outstanding += bytes;
  std::uint64_t& next = operation.members[at->member].next;
  const std::uint64_t number = next;
  next = operation.next_of(at->member, number + 1);
  Contribution contribution{std::move(from.payload), nullptr, bytes};
  contribution.data = contribution.buffer.data();
  add_contribution(operation, number, at->member, std::move(contribution));
  return {};
}

Status Server::Impl::receive_fail(std::uint32_t rank) {
  WorkerState& from = worker(rank);
  wire::Failure failure;
  const wire::ConstBytes payload(from.payload.data(), from.payload.size());
  if (Status status = wire::decode(payload, failure); !status.ok()) {
    return status;
  }
  const std::optional<Place> at = place(rank, from.header.operation);
  if (!at || at->operation->state == Operation::State::failed || !at->operation->home) {
    return {};  // has ended in the meantime, and the worker hears of that; only a home is asked
  }
  fail(*at->operation, std::move(failure.status));
  return {};
}

Status Server::Impl::receive_group(std::uint32_t rank) {
  WorkerState& from = worker(rank);
  wire::GroupMembers members;
  const wire::ConstBytes payload(from.payload.data(), from.payload.size());
  if (Status status = wire::decode(payload, members); !status.ok()) {
    return status;
  }
  if (members.ranks.empty() || std::any_of(members.ranks.begin(), members.ranks.end(),
                                           [this](std::uint32_t member) { return member >= config_.size(); })) {
    return refused("GROUP of ranks that do not exist");
  }
  std::vector<std::uint32_t> sorted = members.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return refused("GROUP with a rank twice");
  }
  const auto known = groups_.find(members.id);
  if (known != groups_.end()) {
    return known->second->ranks == members.ranks ? Status{} : refused("GROUP with other members than it had");
  }
  if (table_bytes_ > most_table_bytes()) {
    return too_much();
  }
  const std::size_t record = group_overhead + sizeof(std::uint32_t) * members.ranks.size();
  groups_bytes_ += record;
  table_bytes_ += record;
  auto made = std::make_unique<Group>();
  made->ranks = std::move(members.ranks);
  groups_.emplace(members.id, std::move(made));
  return {};
}

void Server::Impl::receive_drop(std::uint32_t rank) {
  const std::optional<Place> at = place(rank, worker(rank).header.operation);
  if (!at) {
    return;  // it ended here before the worker heard of the failure
  }
  Operation& operation = *at->operation;
  const bool goes_on = operation.state == Operation::State::gathering || operation.state == Operation::State::flowing;
  if (goes_on && (worker(rank).header.flags & wire::flag_well) != 0) {
    operation.members[at->member].ended = true;  // what it lacked was not all that is missing
    return;
  }
  if (goes_on) {
    // Decided elsewhere: by the home of the operation, or by the coordinator, whose word every member hears.
    drop(operation, at->member);
    fail(operation, {});
    return;
  }
  drop(operation, at->member);
  remove_if_done(operation);
}

void Server::Impl::receive_leave(std::uint32_t rank) {
  worker(rank).left = true;
  be_absent(rank, Code::peer_left);
}

void Server::Impl::limit(std::size_t table_bytes, std::uint32_t most_credit) {
  shared_ = true;
  if (std::exchange(config_.tables.server, table_bytes) > table_bytes) {
    kept_bytes_ = std::max(kept_bytes_, table_bytes_);
  }
  if (std::exchange(most_credit_, most_credit) != most_credit) {
    set_credit(wanted_credit_);
  }
}

// More is granted at once; less is had by giving back less than was spent.
void Server::Impl::set_credit(std::uint32_t wanted) {
  wanted_credit_ = wanted;
  credit_ = std::min(wanted, std::max(most_credit_, window_.credit));
  for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
    WorkerState& to = worker(rank);
    if (to.credit < credit_ && to.epoch == epoch_) {
      grant(rank, credit_ - std::exchange(to.credit, credit_));
    }
  }
}

void Server::Impl::receive_window(const Header& header) {
  set_credit(config_.credit_of(index_, header.credit));
  compete((header.flags & wire::flag_competing) != 0);
}

// Of each link both ends do: what flows in either direction may be what has to.
void Server::Impl::compete(bool on) {
  if (std::exchange(competing_, on) == on) {
    return;
  }
  for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
    const WorkerState& to = worker(rank);
    if (to.link) {
      world_.compete(*to.link, on);
    }
    if (to.epoch == epoch_) {
      tell_to_compete(rank);
    }
  }
}

void Server::Impl::tell_to_compete(std::uint32_t rank) {
  WorkerState& to = worker(rank);
  to.told_to_compete |= competing_;
  send(rank, {.type = Type::window, .flags = competing_ ? wire::flag_competing : std::uint8_t{0}});
}

void Server::Impl::be_absent(std::uint32_t rank, Code absence) {
  worker(rank).absence = absence;
  std::vector<Operation*> concerned;
  for (auto& [serial, operation] : operations_) {
    const std::optional<std::size_t> index = operation->group->index_of(rank);
    if (index && !operation->members[*index].opened) {
      concerned.push_back(operation.get());
    }
  }
  for (Operation* operation : concerned) {
    if (operation->state == Operation::State::failed) {
      remove_if_done(*operation);
    } else if (operation->home && !all_complete(*operation)) {
      fail(*operation, absence_status(*operation, rank));
    }
  }
  settle_what_all_have();
}

Status Server::Impl::absence_status(const Operation& operation, std::uint32_t rank) const {
  const Code code = workers_[rank].absence;
  const char* why =
      code == Code::peer_left ? ", which has left the job normally" : ", which has lost its connection to ";
  return Status::error(code,
                       "'" + operation.name() + "' needs " + rank_text(rank, config_) + why +
                           (code == Code::peer_left ? "" : config_.server_names[index_]),
                       static_cast<std::int32_t>(rank));
}

void Server::Impl::on_lost(LinkId link) {
  const std::uint32_t rank = rank_of(link);
  WorkerState& gone = worker(rank);
  ranks_.erase(link);
  gone.link.reset();
  gone.lost = true;
  gone.payload = Buffer();
  gone.unacknowledged.clear();  // and nobody is told that it has them
  // What it contributed stays: the coordinator decides, and the workers drop what cannot be finished. Only where the
  // coordinator has nothing to decide, since the rank has left and its LEAVE to this server was lost, does it end here.
  if (!gone.left) {
    losses_.emplace(now_ + absence_wait, rank);
  }
  std::vector<std::uint64_t> serials;
  for (auto& [serial, operation] : operations_) {
    if (operation->group->index_of(rank)) {
      serials.push_back(serial);
    }
  }
  for (std::uint64_t serial : serials) {
    const auto found = operations_.find(serial);
    if (found == operations_.end()) {
      continue;
    }
    Operation& operation = *found->second;
    const std::size_t index = *operation.group->index_of(rank);
    if (operation.members[index].opened && !operation.members[index].dropped) {
      drop(operation, index);
    }
    remove_if_done(operation);
  }
}

void Server::Impl::on_time(Time now) {
  now_ = now;
  while (!alarms_.empty() && alarms_.begin()->first <= now) {
    Operation& operation = *operations_.at(alarms_.begin()->second);
    set_alarm(operation, never);
    alarm(operation);
  }
  while (!losses_.empty() && losses_.begin()->first <= now) {
    const std::uint32_t rank = losses_.begin()->second;
    losses_.erase(losses_.begin());
    be_absent(rank, Code::peer_lost);
  }
  if (tell_settled_at_ <= now) {
    tell_settled_at_ = never;
    for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
      send_settled(rank);
    }
  }
}

std::optional<Server::Impl::Place> Server::Impl::place(std::uint32_t rank, std::uint64_t number) {
  const auto found = worker(rank).operations.find(number);
  if (found == worker(rank).operations.end()) {
    return std::nullopt;
  }
  Operation* operation = operations_.at(found->second).get();
  return Place{operation, *operation->group->index_of(rank)};
}

bool Server::Impl::send(std::uint32_t rank, Header header, wire::Bytes owned, std::span<const std::byte> borrowed,
                        Token token) {
  WorkerState& to = worker(rank);
  if (!to.link) {
    return false;
  }
  if (header.type != Type::have) {
    send_settled_along(rank);
  }
  if (header.type == Type::result || header.type == Type::sizes) {
    ++to.results_sent;
  }
  header.epoch = epoch_;
  header.length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
  if (token != 0) {
    ++to.unwritten;
    token = token * limits::world_size + rank;  // on_sent shall know whose it was
  }
  world_.send(*to.link, header, std::move(owned), borrowed, token);
  return true;
}

std::uint32_t Server::Impl::give_back(std::uint32_t rank, std::uint32_t spent) {
  WorkerState& to = worker(rank);
  const std::uint32_t kept = std::min(spent, to.credit > credit_ ? to.credit - credit_ : 0);
  to.credit -= kept;
  return spent - kept;
}

void Server::Impl::grant(std::uint32_t rank, std::uint32_t credit) {
  if (credit > 0) {
    send(rank, {.type = Type::grant, .credit = credit});
  }
}

}  // namespace shoal
