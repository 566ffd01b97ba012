// Tells members that an operation is next in this server's order: by ADMIT, or by its first result.
//
//   Operations whose first result will tell are flowing, have sent no result, and stand in the order of admission.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/server/links.h"
#include "protocol/server/operation.h"
#include "protocol/server/operation_table.h"
#include "protocol/server/terms.h"

namespace shoal::server {

class Admission {
 public:
  Admission(const Terms& terms, const OperationTable& operations, Links& links);

  // The operation is next in order. A member whose whole contribution came with its opening hears nothing.
  // `all_inlined`: every member's first segment has come. `full`: a short operation goes in full segments.
  void admit(const Operation& operation, bool all_inlined, bool full);
  // The same of an operation of which some members have results: each member is told which of the missing ranges it
  // sends and which it receives.
  void resume(const Operation& operation, const std::vector<MissingRange>& missing);
  // Its first result says it to the members, or it is over.
  void forget(const Operation& operation) { std::erase(untold_, operation.serial()); }

  void begin_epoch() { untold_.clear(); }

  void check_invariants() const;

 private:
  bool first_result_tells(const Operation& operation) const;
  void tell_untold();
  void tell(const Operation& operation, std::uint8_t flags);

  const Terms& terms_;
  const OperationTable& operations_;
  Links& links_;
  std::vector<std::uint64_t> untold_;  // serials
};

}  // namespace shoal::server
