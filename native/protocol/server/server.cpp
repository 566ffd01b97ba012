#include "protocol/server/server.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "base/limits.h"
#include "protocol/server/openings.h"
#include "wire/epoch.h"
#include "wire/late.h"

namespace shoal {

using server::Contribution;
using wire::Header;
using wire::Type;

namespace {

// Whether the frame is no longer than its type may be.
Status at_most(std::size_t limit, const Header& header) {
  return header.length <= limit
             ? Status{}
             : refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) +
                       " bytes, at most " + std::to_string(limit) + " are allowed");
}

}  // namespace

Server::Server(const JobConfig& config, std::uint32_t index, ServerWorld& world, BufferPool& pool)
    : pool_(pool),
      terms_(config, index),
      epochs_(config.size()),
      groups_(config.size()),
      absence_(terms_),
      joined_(config.size()),
      progress_(config.size()),
      links_(config.size(), epochs_, world, pool),
      credit_(terms_),
      lifecycle_(terms_, epochs_, groups_, absence_, joined_, links_, credit_, world, pool) {}

// --- Frames ---

Placement Server::on_header(LinkId link, const Header& header) {
  const std::uint32_t rank = links_.rank_of(link);
  if (Status status = check_header(rank, header); !status.ok()) {
    return {std::move(status), nullptr};
  }
  progress_.hear(rank, now_);
  return links_.begin_frame(rank, header);
}

Status Server::check_header(std::uint32_t rank, const Header& header) {
  if (links_.has_left(rank)) {
    return refused(std::string(wire::name_of(header.type)) + " after LEAVE");
  }
  if (Status status = epochs_.check(rank, header); !status.ok()) {
    return status;
  }
  if (header.type == Type::epoch) {
    const bool ends = (header.flags & wire::flag_reopened) != 0;
    return at_most(ends ? 0 : wire::epoch_limit(terms_.config().servers()), header);
  }
  if (epochs_.is_stale(header)) {
    return at_most(server::opening_limit(true, terms_), header);
  }
  if (header.epoch == epochs_.number()) {
    if (Status status = lifecycle_.receipts().check(rank, header.acknowledged); !status.ok()) {
      return status;
    }
  }
  switch (header.type) {
    case Type::open:
      if (lifecycle_.operations().has_number(rank, header.operation)) {
        return refused("opens operation " + std::to_string(header.operation) + " twice");
      }
      return at_most(server::opening_limit(!epochs_.has_reopened(rank), terms_), header);
    case Type::data:
      return lifecycle_.check_data(rank, header);
    case Type::fail:
      return at_most(limits::text_bytes + 8, header);
    case Type::group:
      return at_most(24 + 4 * static_cast<std::size_t>(terms_.ranks()), header);
    case Type::drop:
    case Type::leave:
    case Type::ask:
    case Type::have:
      return at_most(0, header);
    case Type::window:
      return check_window(rank, header);
    case Type::join:
      return at_most(wire::join_bytes, header);
    default:
      return refused(std::string(wire::name_of(header.type)) + " is not for a server");
  }
}

Status Server::check_window(std::uint32_t rank, const Header& header) const {
  if (rank != 0) {
    return refused("WINDOW from another than rank 0");
  }
  const JobConfig& config = terms_.config();
  if (header.length != 0 || header.credit < config.segment || header.credit > config.most_credit()) {
    return refused("WINDOW with a credit of " + std::to_string(header.credit) + ", which is not from " +
                   std::to_string(config.segment) + " to " + std::to_string(config.most_credit()));
  }
  return {};
}

Status Server::on_payload(LinkId link) {
  const std::uint32_t rank = links_.rank_of(link);
  const Header& header = links_.header(rank);
  if (epochs_.is_stale(header)) {
    links_.take_payload(rank);
    return {};
  }
  if (header.type != Type::epoch && header.epoch == epochs_.number()) {
    lifecycle_.receipts().acknowledge(rank, header.acknowledged);
  }
  switch (header.type) {
    case Type::open:
      return hear_open(rank);
    case Type::data:
      lifecycle_.contribute(rank, header, links_.take_payload(rank));
      return {};
    case Type::fail:
      return hear_fail(rank);
    case Type::group:
      return hear_group(rank);
    case Type::join:
      return hear_join(rank);
    case Type::drop:
      lifecycle_.drop(rank, header.operation, (header.flags & wire::flag_well) != 0);
      return {};
    case Type::ask:
      hear_ask(rank, header.operation);
      return {};
    case Type::leave:
      hear_leave(rank);
      return {};
    case Type::window:
      hear_window(header);
      return {};
    case Type::have:
      return {};
    case Type::epoch:
      return hear_epoch(rank);
    default:
      return refused("unexpected frame");
  }
}

Status Server::hear_open(std::uint32_t rank) {
  wire::Opening opening;
  std::size_t inline_offset = 0;
  if (Status status = wire::decode(links_.payload(rank), opening, inline_offset); !status.ok()) {
    return status;
  }
  const server::Group* group = groups_.find(opening.group);
  if (group == nullptr) {
    return refused("OPEN of '" + opening.name + "' in a group that was not announced");
  }
  const std::optional<std::size_t> index = group->index_of(rank);
  if (!index) {
    return refused("OPEN of '" + opening.name + "' in a group that this rank is not a member of");
  }
  const bool carried = !epochs_.has_reopened(rank);
  if (Status status = server::check_opening(opening, *group, carried, terms_); !status.ok()) {
    return status;
  }
  Contribution inline_data{links_.take_payload(rank), nullptr, 0};
  inline_data.data = inline_data.buffer.data() + inline_offset;
  if (opening.inline_bytes == 0) {
    inline_data = {};
  }
  progress_.hear_opening(rank, opening);
  return lifecycle_.open(*group, *index, links_.header(rank).operation, std::move(opening), std::move(inline_data),
                         now_);
}

Status Server::hear_fail(std::uint32_t rank) {
  wire::Failure failure;
  if (Status status = wire::decode(links_.payload(rank), failure); !status.ok()) {
    return status;
  }
  lifecycle_.ask_to_fail(rank, links_.header(rank).operation, std::move(failure.status));
  return {};
}

Status Server::hear_group(std::uint32_t rank) {
  wire::GroupMembers members;
  if (Status status = wire::decode(links_.payload(rank), members); !status.ok()) {
    return status;
  }
  if (Status status = groups_.check(members); !status.ok() || groups_.find(members.id) != nullptr) {
    return status;
  }
  if (lifecycle_.operations().is_overfull()) {
    return lifecycle_.operations().too_much();
  }
  groups_.add(std::move(members));
  return {};
}

Status Server::hear_join(std::uint32_t rank) {
  Hash128 id;
  if (Status status = wire::decode_join(links_.payload(rank), id); !status.ok()) {
    return status;
  }
  const server::Group* group = groups_.find(id);
  const std::optional<std::size_t> index = group == nullptr ? std::nullopt : group->index_of(rank);
  if (!index) {
    return refused("JOIN in a group that was not announced, or that this rank is not a member of");
  }
  const bool over = (links_.header(rank).flags & wire::flag_over) != 0;
  if (Status status = joined_.note(*group, *index, over); !status.ok()) {
    return status;
  }
  if (!over) {
    lifecycle_.tell_what_was_called(*group, *index);
  }
  return {};
}

void Server::hear_ask(std::uint32_t rank, std::uint64_t number) {
  wire::Late late;
  if (const auto at = lifecycle_.operations().find(rank, number)) {
    progress_.add_late(*at->operation, now_, late);
  }
  // A root waits until all others have been written to, which may be after the operation.
  for (std::uint32_t other = 0; lifecycle_.results().keeps_waiting(rank, number) && other < terms_.ranks(); ++other) {
    if (links_.is_behind(other)) {
      progress_.add_late(other, wire::Late::Why::does_not_read, now_, late);
    }
  }
  links_.send(rank, {.type = Type::late, .operation = number}, wire::encode(late));
}

void Server::hear_leave(std::uint32_t rank) {
  links_.leave(rank);
  absence_.leave(rank);
  lifecycle_.be_absent(rank);
}

// --- The window ---

void Server::hear_window(const Header& header) {
  credit_.want(terms_.config().credit_of(terms_.index(), header.credit));
  raise_credit();
  links_.compete((header.flags & wire::flag_competing) != 0);
}

void Server::limit(std::size_t table_bytes, std::uint32_t most_credit) {
  lifecycle_.operations().limit(table_bytes);
  if (credit_.limit(most_credit)) {
    raise_credit();
  }
}

// More is granted at once; less is had by giving back less than was spent.
void Server::raise_credit() {
  for (std::uint32_t rank = 0; rank < terms_.ranks(); ++rank) {
    if (epochs_.is_current(rank)) {
      links_.grant(rank, credit_.raise(rank));
    }
  }
}

// --- Epochs ---

Status Server::hear_epoch(std::uint32_t rank) {
  const Header& header = links_.header(rank);
  if ((header.flags & wire::flag_reopened) != 0) {
    epochs_.hear_reopened(rank);
    lifecycle_.settle_what_all_have();
    return {};
  }
  wire::Epoch epoch;
  if (Status status = wire::decode(links_.payload(rank), epoch); !status.ok()) {
    return status;
  }
  const std::vector<std::uint32_t>& weights = terms_.config().weights;
  const bool works = epoch.weights.size() == weights.size() &&
                     std::any_of(epoch.weights.begin(), epoch.weights.end(), [](std::uint32_t w) { return w > 0; });
  if (!works || (header.epoch == epochs_.number() && epoch.weights != weights)) {
    return refused("EPOCH " + std::to_string(header.epoch) + " with weights that cannot be");
  }
  if (header.epoch > epochs_.number()) {
    begin_epoch(header.epoch, epoch.weights);
  }
  epochs_.hear(rank, header.epoch);
  if (epochs_.is_current(rank)) {
    links_.grant(rank, credit_.raise(rank));
    links_.repeat_competing(rank);
  }
  return {};
}

// With a new epoch a server forgets everything that it knew of operations. Nobody tells it more than that, so all that
// it says to a worker before the worker's own EPOCH are grants that it holds back.
void Server::begin_epoch(std::uint32_t number, const std::vector<std::uint32_t>& weights) {
  epochs_.begin(number);
  terms_.begin_epoch(weights);
  credit_.begin_epoch();
  links_.begin_epoch();
  joined_.begin_epoch();
  lifecycle_.begin_epoch();
}

// --- Other events ---

void Server::on_lost(LinkId link, const Status& /*why*/) {
  const std::uint32_t rank = links_.rank_of(link);
  links_.lose(link);
  absence_.lose(rank, now_);
  lifecycle_.lose(rank);
}

void Server::on_time(Time now) {
  now_ = now;
  links_.set_time(now);
  lifecycle_.on_time(now);
  while (const std::optional<std::uint32_t> rank = absence_.next_lost(now)) {
    lifecycle_.be_absent(*rank);
  }
  links_.tell_overdue();
}

Time Server::deadline() const { return std::min({lifecycle_.deadline(), absence_.deadline(), links_.deadline()}); }

void Server::check_invariants() const {
  terms_.check_invariants();
  epochs_.check_invariants();
  groups_.check_invariants();
  absence_.check_invariants();
  joined_.check_invariants();
  progress_.check_invariants(now_);
  links_.check_invariants();
  credit_.check_invariants();
  lifecycle_.check_invariants();
  for (std::uint32_t rank = 0; rank < terms_.ranks(); ++rank) {
    SHOAL_INVARIANT(!links_.has_left(rank) || absence_.is_absent(rank));
    SHOAL_INVARIANT(!links_.is_lost(rank) || lifecycle_.operations().open_of(rank) == 0);
    SHOAL_INVARIANT(epochs_.is_current(rank) || lifecycle_.operations().open_of(rank) == 0);
  }
}

}  // namespace shoal
