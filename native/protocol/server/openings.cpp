// Openings as they come to a server: whether they can be, and whether there is room for them.
#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/server/impl.h"
#include "reduce/reduce.h"

namespace shoal {

using server::Contribution;
using server::Member;
using wire::Type;

namespace {

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

// Whether these sizes are possible and add up to exactly `bytes`.
bool add_up(const std::vector<std::int64_t>& splits, std::uint64_t bytes) {
  for (std::int64_t split : splits) {
    if (split < 0 || static_cast<std::uint64_t>(split) > bytes) {
      return false;
    }
    bytes -= static_cast<std::uint64_t>(split);
  }
  return bytes == 0;
}

}  // namespace

Range Server::Impl::shard_for(const wire::Opening& opening) const {
  return share_of(index_, opening.bytes, home_of(opening.key, config_), config_);
}

std::uint32_t Server::Impl::inline_of(const wire::Opening& opening) const {
  if (is_gather(opening.collective)) {
    return opening.bytes <= config_.small ? static_cast<std::uint32_t>(opening.bytes) : 0;
  }
  if (takes_ring(opening)) {
    return 0;
  }
  const std::uint64_t shard = shard_for(opening).size();
  return config_.inline_of(shard, config_.segment_for(window_, opening.bytes, shard));
}

Status Server::Impl::receive_open(std::uint32_t rank) {
  WorkerState& from = worker(rank);
  wire::Opening opening;
  std::size_t inline_offset = 0;
  const wire::ConstBytes payload(from.payload.data(), from.payload.size());
  if (Status status = wire::decode(payload, opening, inline_offset); !status.ok()) {
    return status;
  }
  const auto group = groups_.find(opening.group);
  if (group == groups_.end()) {
    return refused("OPEN of '" + opening.name + "' in a group that was not announced");
  }
  const std::optional<std::size_t> index = group->second->index_of(rank);
  if (!index) {
    return refused("OPEN of '" + opening.name + "' in a group that this rank is not a member of");
  }
  if (Status status = check_carried(from, opening); !status.ok()) {
    return status;
  }
  // What goes through the home again counts for nothing.
  const bool counts = from.reopened || !is_gather(opening.collective);
  if (counts && from.eager + opening.inline_bytes > config_.eager) {
    return refused("inline data of '" + opening.name + "' is beyond the eager limit of " +
                   std::to_string(config_.eager));
  }
  // Inline data is the first segment; one that contributes nothing sends none.
  if (opening.inline_bytes != 0 && opening.inline_bytes != inline_of(opening)) {
    return refused("OPEN of '" + opening.name + "' with another part of its data than the first segment");
  }
  if (traits_of(opening.collective).has_root() && opening.root >= group->second->ranks.size()) {
    return refused("OPEN of '" + opening.name + "' with a root that is not in the group");
  }
  const bool is_split = is_gather(opening.collective) && !traits_of(opening.collective).same_blocks;
  const bool splits_fit =
      !is_split || opening.failed ||
      (opening.splits.size() == group->second->ranks.size() && add_up(opening.splits, opening.bytes));
  if (!splits_fit) {
    return refused("OPEN of '" + opening.name + "' with splits that do not add up");
  }
  const bool reduces = traits_of(opening.collective).reduces;
  if (!opening.failed && reduces && !reducible(opening.dtype, opening.op)) {
    return refused("OPEN of '" + opening.name + "' with operator " + name_of(opening.op) + " for " +
                   name_of(opening.dtype));
  }
  if (!opening.failed && opening.dtype != DType::none && opening.bytes % size_of(opening.dtype) != 0) {
    return refused("OPEN of '" + opening.name + "' with a part of an element");
  }
  if (!has_room(from, opening)) {
    return too_much();
  }
  const bool lives_at_home =
      opening.failed || opening.bytes <= config_.small || is_gather(opening.collective) || takes_ring(opening);
  if (lives_at_home && home_of(opening.key, config_) != index_) {
    return refused("OPEN of '" + opening.name + "', whose home is another server");
  }
  Operation& operation = find_or_make(opening, *group->second);
  if (operation.group != group->second.get()) {
    return refused("OPEN of '" + opening.name + "' in another group than the key says");
  }
  Member& member = operation.members[*index];
  if (member.opened) {
    return refused("opens '" + opening.name + "' twice");
  }
  member.opened = true;
  member.number = from.header.operation;
  member.inlined = opening.inline_bytes == opening.bytes;
  member.eager = counts ? opening.inline_bytes : 0;
  from.eager += member.eager;
  from.operations.emplace(member.number, operation.serial);
  member.inline_data = Contribution{std::move(from.payload), nullptr, 0};
  member.inline_data.data = member.inline_data.buffer.data() + inline_offset;
  if (opening.inline_bytes == 0) {
    member.inline_data = Contribution{};
  }
  from.last_opened = opening.collective;
  from.last_name = opening.name;
  const std::size_t record = server::record_bytes(opening);
  const std::size_t more = record - std::min(record, operation.reserved);
  operation.record += more;
  table_bytes_ += more;
  member.opening = std::move(opening);
  ++operation.opened;
  // What was open before there was too little room goes on.
  if (table_bytes_ > config_.tables.server && operation.opened == 1 && from.reopened && !member.opening.failed) {
    refuse(operation, *index);
  } else {
    opened(operation, *index);
  }
  return {};
}

// An operation has room from the beginning for an opening of each member like the first: what is open can always become
// complete, which alone makes room again. That holds where the limit was lowered below what is open, too. In a new
// epoch what was open at the server that is lost comes to those that are left.
bool Server::Impl::has_room(const WorkerState& from, const wire::Opening& opening) const {
  const auto known = serials_.find(opening.key);
  const std::size_t reserved = known == serials_.end() ? 0 : operations_.at(known->second)->reserved;
  return server::record_bytes(opening) <= reserved ||
         table_bytes_ <= most_table_bytes() * (from.reopened ? 1 : config_.servers());
}

std::size_t Server::Impl::most_table_bytes() const {
  return std::max(2 * config_.tables.server, kept_bytes_ + config_.tables.server);
}

Status Server::Impl::too_much() const {
  return Status::error(
      Code::limit, "what the job has open takes all the memory that it may at " + config_.server_names[index_] + ", " +
                       bytes_text(config_.tables.server) + " (tables_bytes" +
                       (shared_ ? ": its share of --memory, beside other jobs" : "") +
                       "): " + std::to_string(operations_.size()) +
                       " operations are open or have failed without all their ranks; wait for some of them");
}

// Only a home decides that an operation fails, so others ask for that, by way of the worker that has opened it.
void Server::Impl::refuse(Operation& operation, std::size_t index) {
  Status why = too_much();
  why.message = "'" + operation.name() + "': " + why.message;
  if (operation.home) {
    fail(operation, std::move(why));
    return;
  }
  operation.conflict = true;  // not to be admitted
  send(operation.group->ranks[index], {.type = Type::fail, .operation = operation.members[index].number},
       wire::encode(wire::Failure{std::move(why)}));
}

// Only what was open in an epoch before says how far it has come.
Status Server::Impl::check_carried(const WorkerState& from, const wire::Opening& opening) const {
  const bool carried = opening.finished || opening.exchange != 0 || !opening.have.empty();
  if (carried && from.reopened) {
    return refused("OPEN of '" + opening.name + "' as one of an epoch before, of which all had come");
  }
  const std::uint64_t server = (opening.exchange >> 40U) - 1;
  if (opening.exchange != 0 &&
      (server >= config_.servers() || !(is_gather(opening.collective) || takes_ring(opening)))) {
    return refused("OPEN of '" + opening.name + "' with an exchange that it cannot have");
  }
  return {};
}

}  // namespace shoal
