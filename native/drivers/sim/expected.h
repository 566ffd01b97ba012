// What the members of an operation put in and must get out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "drivers/sim/workload.h"

namespace shoal::sim {

// The values of one operation, computed when they are first asked for.
class Expected {
 public:
  Expected(const Plan& plan, const OperationPlan& operation)
      : plan_(plan), operation_(operation), inputs_(operation.members.size()) {}

  // The member's input, as the plan's seed gives it.
  const Bytes& input(std::size_t member);
  // The member's result. For operations that nothing is wrong with.
  Bytes result(std::size_t member);

 private:
  const Bytes& reduced();
  Bytes reduced_by_nodes(const std::vector<Bytes>& inputs) const;
  Bytes blocks(std::size_t member);

  const Plan& plan_;
  const OperationPlan& operation_;
  std::vector<std::optional<Bytes>> inputs_;  // by member
  std::optional<Bytes> reduced_;
};

// The bytes of the member's output, by its own arguments.
std::size_t output_bytes_of(const OperationPlan& operation, std::size_t member);

// Where in an array of the whole operation the member's own part lies: its chunk of a reduce-scatter's input, its block
// of an all-gather's output.
std::size_t own_offset(const OperationPlan& operation, std::size_t member);

// What each member sends to this one (all-gather, all-to-all).
std::vector<std::uint64_t> blocks_for(const OperationPlan& operation, std::size_t member);

}  // namespace shoal::sim
