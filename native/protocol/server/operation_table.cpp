#include "protocol/server/operation_table.h"

#include <algorithm>
#include <string>

#include "base/invariant.h"

namespace shoal::server {

namespace {

// What an operation takes of a server's memory beside its data: with its places in tables, and what is remembered of it
// until all have its results.
std::size_t record_bytes(const Group& group) {
  constexpr std::size_t entries = 512;
  constexpr std::size_t receipt = 16;
  return sizeof(Operation) + entries + group.ranks.size() * (sizeof(Member) + receipt);
}

// What one opening of it adds.
std::size_t record_bytes(const wire::Opening& opening) {
  constexpr std::size_t entry = 32;  // of the worker's numbers
  return entry + opening.name.size() + opening.text.size() + 8 * (opening.shape.size() + opening.splits.size()) +
         sizeof(Range) * opening.have.size();
}

}  // namespace

OperationTable::OperationTable(const Terms& terms, const Groups& groups)
    : terms_(terms), groups_(groups), numbers_(terms.ranks()), limit_(terms.config().tables.server) {}

std::optional<OperationTable::Place> OperationTable::find(std::uint32_t rank, std::uint64_t number) {
  const auto found = numbers_[rank].find(number);
  if (found == numbers_[rank].end()) {
    return std::nullopt;
  }
  Operation& operation = entries_.at(found->second).operation;
  return Place{&operation, *operation.group().index_of(rank)};
}

Operation* OperationTable::find(std::uint64_t serial) {
  const auto found = entries_.find(serial);
  return found == entries_.end() ? nullptr : &found->second.operation;
}

Operation& OperationTable::find_or_make(const wire::Opening& opening, const Group& group) {
  Serials& serials = serials_of(group.senders);
  const auto found = serials.find(opening.key);
  if (found != serials.end()) {
    return entries_.at(found->second).operation;
  }
  const std::uint64_t serial = next_serial_++;
  const std::size_t reserved = record_bytes(opening) - opening.text.size();
  const std::size_t record = record_bytes(group) + group.ranks.size() * reserved;
  records_ += record;
  serials.emplace(opening.key, serial);
  Operation made(serial, opening.key, group, terms_.is_home_of(opening.key));
  return entries_.emplace(serial, Entry{std::move(made), record, reserved}).first->second.operation;
}

Operation* OperationTable::rival(const Hash128& key, const Group& group) {
  const Serials& others = serials_of(group.senders == Senders::nodes ? Senders::ranks : Senders::nodes);
  const auto found = others.find(key);
  return found == others.end() ? nullptr : &entries_.at(found->second).operation;
}

void OperationTable::open(Operation& operation, std::size_t index, std::uint64_t number, wire::Opening opening,
                          Contribution inline_data, std::uint32_t eager) {
  Entry& of = entry(operation);
  const std::size_t record = record_bytes(opening);
  const std::size_t more = record - std::min(record, of.reserved);
  of.record += more;
  records_ += more;
  numbers_[operation.rank(index)].emplace(number, operation.serial());
  operation.open(index, number, std::move(opening), std::move(inline_data), eager);
}

void OperationTable::drop(Operation& operation, std::size_t index) {
  operation.drop(index);
  numbers_[operation.rank(index)].erase(operation.member(index).number);
}

void OperationTable::remove(Operation& operation) {
  records_ -= entry(operation).record;
  kept_ = std::min(kept_, bytes());
  serials_of(operation.group().senders).erase(operation.key());
  entries_.erase(operation.serial());
}

void OperationTable::clear() {
  entries_.clear();
  serials_ = {};
  records_ = 0;
  for (auto& of_worker : numbers_) {
    of_worker.clear();
  }
}

bool OperationTable::is_overfull(std::size_t times) const {
  return bytes() > std::max(2 * limit_, kept_ + limit_) * times;
}

bool OperationTable::has_room(const wire::Opening& opening, const Group& group, bool carried) const {
  const Serials& serials = serials_of(group.senders);
  const auto known = serials.find(opening.key);
  const std::size_t reserved = known == serials.end() ? 0 : entries_.at(known->second).reserved;
  return record_bytes(opening) <= reserved || !is_overfull(carried ? terms_.config().servers() : 1);
}

Status OperationTable::too_much() const {
  return Status::error(Code::limit,
                       "what the job has open takes all the memory that it may at " + terms_.name() + ", " +
                           bytes_text(limit_) + " (tables_bytes" +
                           (is_shared_ ? ": its share of --memory, beside other jobs" : "") +
                           "): " + std::to_string(entries_.size()) +
                           " operations are open or have failed without all their ranks; wait for some of them");
}

void OperationTable::limit(std::size_t bytes_allowed) {
  is_shared_ = true;
  if (std::exchange(limit_, bytes_allowed) > bytes_allowed) {
    kept_ = std::max(kept_, bytes());
  }
}

void OperationTable::check_invariants() const {
  std::size_t records = 0;
  std::vector<std::size_t> open(numbers_.size());  // by rank
  for (const auto& [serial, entry] : entries_) {
    const Operation& operation = entry.operation;
    operation.check_invariants();
    records += entry.record;
    SHOAL_INVARIANT(operation.serial() == serial && serial < next_serial_);
    for (std::size_t i = 0; i < operation.size(); ++i) {
      const Member& member = operation.member(i);
      open[operation.rank(i)] += member.opened && !member.dropped ? 1 : 0;
    }
  }
  for (std::size_t rank = 0; rank < numbers_.size(); ++rank) {
    SHOAL_INVARIANT(numbers_[rank].size() == open[rank]);
  }
  SHOAL_INVARIANT(records == records_);
  SHOAL_INVARIANT(serials_[0].size() + serials_[1].size() == entries_.size());
}

}  // namespace shoal::server
