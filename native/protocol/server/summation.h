// Turns contributions into results: starts the sum of a segment when all its contributions are there, and keeps their
// memory until it is done.
//
//   A sum in progress has a contribution of every member of its group.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocol/machine.h"
#include "protocol/server/admission.h"
#include "protocol/server/epochs.h"
#include "protocol/server/operation.h"
#include "protocol/server/operation_table.h"
#include "protocol/server/results.h"

namespace shoal::server {

class Summation {
 public:
  Summation(const Epochs& epochs, OperationTable& operations, Admission& admission, Results& results,
            ServerWorld& world);

  // The member's contribution to a segment has come. True: the operation's last result has been sent.
  bool contribute(Operation& operation, std::uint64_t number, std::size_t member, Contribution contribution);
  // The segment needs no sum, or no further one. True: as above.
  bool finish(Operation& operation, std::uint64_t number, Segment segment);
  // A sum is done. Returns the operation whose last result has been sent with it, or null.
  Operation* summed(Token token);
  // Gives back the credit of contributions that are not answered. Sums in progress give theirs back when they are done.
  void release(Operation& operation);

  // Adds the credit of sums in progress, by rank.
  void add_summing(std::vector<std::uint64_t>& by_rank) const;
  void check_invariants() const;

 private:
  struct Summing {
    std::uint32_t epoch = 0;
    std::uint64_t serial = 0;
    const Group* group = nullptr;
    std::uint64_t number = 0;
    Segment segment;
  };

  void start_sum(const Operation& operation, std::uint64_t number, Segment segment);

  const Epochs& epochs_;
  OperationTable& operations_;
  Admission& admission_;
  Results& results_;
  ServerWorld& world_;
  Token next_token_ = 1;
  std::unordered_map<Token, Summing> summing_;
};

}  // namespace shoal::server
