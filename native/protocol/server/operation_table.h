// The operations that a server knows of, tombstones included, by serial, by key and by each worker's numbers; and how
// much of the tables' memory they take (docs/protocol/lifecycle.md, Opening).
//
// The first opening of an operation reserves room for openings of all its members. So open operations can always become
// complete, which is the only way to free their memory.
//
// A key may have two operations: one of a group of ranks, and one of leaders that speak for them. They are rivals: some
// nodes call what goes by way of leaders, and others what does not (docs/protocol/lifecycle.md, Failure).
//
//   bytes() = groups + the records of all operations. There are as many keys, each of one kind of group, as operations.
//   Each worker has as many numbers as operations that it has opened and not dropped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/machine.h"
#include "protocol/server/groups.h"
#include "protocol/server/operation.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class OperationTable {
 private:
  struct Entry {
    Operation operation;
    std::size_t record = 0;    // bytes that it counts for
    std::size_t reserved = 0;  // the part of them for the opening of each member
  };
  using Entries = std::unordered_map<std::uint64_t, Entry>;

 public:
  OperationTable(const Terms& terms, const Groups& groups);

  // What a worker's number stands for.
  struct Place {
    Operation* operation = nullptr;
    std::size_t member = 0;
  };
  std::optional<Place> find(std::uint32_t rank, std::uint64_t number);
  bool has_number(std::uint32_t rank, std::uint64_t number) const { return numbers_[rank].count(number) > 0; }
  // How many operations the worker has opened and not dropped.
  std::size_t open_of(std::uint32_t rank) const { return numbers_[rank].size(); }
  // Null: it is gone.
  Operation* find(std::uint64_t serial);
  const Operation& at(std::uint64_t serial) const { return entries_.at(serial).operation; }
  std::size_t size() const { return entries_.size(); }
  // Serials of the operations for which `is_wanted` is true, in no order.
  template <class Predicate>
  std::vector<std::uint64_t> find_all(const Predicate& is_wanted) const;

  // The operation of the opening's key among groups of this kind, new if there is none.
  Operation& find_or_make(const wire::Opening& opening, const Group& group);
  // The operation of this key in the other kind of group, of one that lives in this group; null: there is none.
  Operation* rival(const Hash128& key, const Group& group);
  Operation* rival(const Operation& operation) { return rival(operation.key(), operation.group()); }
  void open(Operation& operation, std::size_t index, std::uint64_t number, wire::Opening opening,
            Contribution inline_data, std::uint32_t eager);
  // Forgets the member's number.
  void drop(Operation& operation, std::size_t index);
  void remove(Operation& operation);
  void clear();

  // Bytes of the tables, groups included.
  std::size_t bytes() const { return groups_.bytes() + records_; }
  // Whether new operations fail.
  bool is_full() const { return bytes() > limit_; }
  // Whether there is no room even for failed operations, so that links end. `times`: how many times the limit counts.
  bool is_overfull(std::size_t times = 1) const;
  // Whether there is room for this opening. `carried`: of an operation of an earlier epoch. Those may come from all
  // servers of the job.
  bool has_room(const wire::Opening& opening, const Group& group, bool carried) const;
  // The error of an operation for which there is no room.
  Status too_much() const;
  // Lowers the limit, since other jobs share the process. Operations that are here keep their room.
  void limit(std::size_t bytes);

  void check_invariants() const;
  // Visits every operation: for the invariants of other classes.
  template <class Check>
  void for_each(const Check& check) const;

 private:
  using Serials = std::unordered_map<Hash128, std::uint64_t>;  // by key

  Serials& serials_of(Senders senders) { return serials_[static_cast<std::size_t>(senders)]; }
  const Serials& serials_of(Senders senders) const { return serials_[static_cast<std::size_t>(senders)]; }
  Entry& entry(const Operation& operation) { return entries_.at(operation.serial()); }

  const Terms& terms_;
  const Groups& groups_;
  Entries entries_;                                                        // by serial
  std::array<Serials, 2> serials_;                                         // by kind of group
  std::vector<std::unordered_map<std::uint64_t, std::uint64_t>> numbers_;  // by rank: its number → serial
  std::uint64_t next_serial_ = 1;
  std::size_t records_ = 0;  // bytes
  std::size_t limit_;        // bytes, with groups
  std::size_t kept_ = 0;     // bytes that were there when the limit was lowered, and still are
  bool is_shared_ = false;
};

template <class Predicate>
std::vector<std::uint64_t> OperationTable::find_all(const Predicate& is_wanted) const {
  std::vector<std::uint64_t> found;
  for (const auto& [serial, entry] : entries_) {
    if (is_wanted(entry.operation)) {
      found.push_back(serial);
    }
  }
  return found;
}

template <class Check>
void OperationTable::for_each(const Check& check) const {
  for (const auto& [serial, entry] : entries_) {
    check(entry.operation);
  }
}

}  // namespace shoal::server
