// From contributions to results: sums that are being carried out, and the memory of their sources.
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
  // The segment has nothing to be summed any more. True: as above.
  bool finish(Operation& operation, std::uint64_t number, Segment segment);
  // The operation whose last result has been sent with this sum; null: none.
  Operation* summed(Token token);
  // Gives back the credit of what has come and is not answered. Sums in progress give theirs back when they are done.
  void release(Operation& operation);

  // Adds the credit of what is being summed to its workers' bytes.
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
