// A worker's operations: open ones, and finished ones that other members may still need.
//
//   every number is below next_number_; none is both open and finished; every streamed handle belongs to an open
//   operation
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/range.h"
#include "protocol/worker/operation.h"

namespace shoal::worker {

class OperationTable {
 public:
  // The number of the next operation, which no other has had.
  std::uint64_t take_number() { return next_number_++; }
  bool was_given(std::uint64_t number) const { return number > 0 && number < next_number_; }

  Operation& open(std::unique_ptr<Operation> operation);
  // The operation is no longer open, and its handle no longer known.
  std::unique_ptr<Operation> close(std::uint64_t number);
  void keep_finished(std::unique_ptr<Operation> operation);
  std::unique_ptr<Operation> forget_finished(std::uint64_t number);

  // Null if there is none. find(): open ones. find_any(): finished ones too. find_going_on(): open ones, and finished
  // ones that did not fail.
  Operation* find(std::uint64_t number) const { return find_in(open_, number); }
  Operation* find_finished(std::uint64_t number) const { return find_in(finished_, number); }
  Operation* find_any(std::uint64_t number) const;
  Operation* find_going_on(std::uint64_t number) const;
  // Null unless an open streamed operation has this handle.
  Operation* find_streamed(std::uint64_t handle) const;
  // Null unless an open operation has this handle. Looks at all of them.
  Operation* find_open(std::uint64_t handle) const;

  std::size_t open_count() const { return open_.size(); }
  bool nothing_is_open() const { return open_.empty(); }
  std::size_t finished_count() const { return finished_.size(); }
  // Whether others may need a finished operation that did not fail.
  bool others_need_some() const;

  // The numbers of the operations for which `which` is true, ascending.
  template <class Which>
  std::vector<std::uint64_t> open_where(Which which) const {
    return numbers_in(open_, which);
  }
  template <class Which>
  std::vector<std::uint64_t> finished_where(Which which) const {
    return numbers_in(finished_, which);
  }
  // In no order.
  template <class Visit>
  void visit_open(Visit visit) const {
    for (const auto& [number, operation] : open_) {
      visit(static_cast<const Operation&>(*operation));
    }
  }
  template <class Visit>
  void visit_all(Visit visit) const {
    visit_open(visit);
    for (const auto& [number, operation] : finished_) {
      visit(static_cast<const Operation&>(*operation));
    }
  }

  void check_invariants() const;

 private:
  using Map = std::unordered_map<std::uint64_t, std::unique_ptr<Operation>>;

  static Operation* find_in(const Map& map, std::uint64_t number) {
    const auto found = map.find(number);
    return found == map.end() ? nullptr : found->second.get();
  }
  template <class Which>
  static std::vector<std::uint64_t> numbers_in(const Map& map, Which which) {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, operation] : map) {
      if (which(static_cast<const Operation&>(*operation))) {
        numbers.push_back(number);
      }
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  std::uint64_t next_number_ = 1;
  Map open_;                                                   // by number
  Map finished_;                                               // by number
  std::unordered_map<std::uint64_t, std::uint64_t> streamed_;  // of open operations: handle → number
};

}  // namespace shoal::worker
