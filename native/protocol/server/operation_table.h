// The operations that a server knows of, tombstones included: by serial, by key and by each worker's numbers; and what
// they take of the memory that tables may (docs/protocol/lifecycle.md, Opening).
//
// An operation has room from the beginning for an opening of each of its members like the first, so what is open can
// always become complete, which alone makes room again.
//
//   bytes() = groups + the records of all operations; there are as many keys as operations, and of each worker as many
//   numbers as operations that it has opened and not dropped.
#pragma once

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
    std::size_t reserved = 0;  // of these, for the opening of each member
  };
  using Entries = std::unordered_map<std::uint64_t, Entry>;

 public:
  OperationTable(const Terms& terms, const Groups& groups);

  // Where a worker's number leads.
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
  // Serials of those that are so; in no order.
  template <class Predicate>
  std::vector<std::uint64_t> find_all(const Predicate& is_wanted) const;

  // The operation of the opening's key, new if there is none.
  Operation& find_or_make(const wire::Opening& opening, const Group& group);
  void open(Operation& operation, std::size_t index, std::uint64_t number, wire::Opening opening,
            Contribution inline_data, std::uint32_t eager);
  // Forgets the member's number.
  void drop(Operation& operation, std::size_t index);
  void remove(Operation& operation);
  void clear();

  // What all of it takes, groups included.
  std::size_t bytes() const { return groups_.bytes() + records_; }
  // Whether new operations fail.
  bool is_full() const { return bytes() > limit_; }
  // Whether not even those have room: then links end. `times`: as much as so many limits allow.
  bool is_overfull(std::size_t times = 1) const;
  // Whether there is room for this opening. `carried`: of what was open in an epoch before, which may come from all
  // servers of the job.
  bool has_room(const wire::Opening& opening, bool carried) const;
  // What limits say, for people.
  Status too_much() const;
  // What there is keeps its room. The process is shared with other jobs.
  void limit(std::size_t bytes);

  void check_invariants() const;
  // For each operation and its record: for checks of those who hold more about operations.
  template <class Check>
  void for_each(const Check& check) const;

 private:
  Entry& entry(const Operation& operation) { return entries_.at(operation.serial()); }

  const Terms& terms_;
  const Groups& groups_;
  Entries entries_;                                                        // by serial
  std::unordered_map<Hash128, std::uint64_t> serials_;                     // by key
  std::vector<std::unordered_map<std::uint64_t, std::uint64_t>> numbers_;  // by rank: its number → serial
  std::uint64_t next_serial_ = 1;
  std::size_t records_ = 0;  // bytes
  std::size_t limit_;        // bytes, with groups
  std::size_t kept_ = 0;     // what there was when the limit was lowered, as far as it is still there
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
