// Whether there is room for a reduce-scatter or an all-gather that goes up, before any rank of the node begins with it:
// the leader's crossing array (crossing.h), and each rank's memory for what an all-gather brings. Where it lacks, the
// operation fails on all nodes. Nobody else is kept: each rank answers as soon as it has read the sizes.
//
//   an all-gather flows once the leader has the word of each rank of its node
#pragma once

#include <cstdint>

#include "protocol/local/call_table.h"
#include "protocol/local/execution.h"
#include "protocol/local/failures.h"
#include "protocol/local/mailbox.h"
#include "protocol/local/members.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"

namespace shoal::local {

class Rooms {
 public:
  // All of these must outlive it. `own`: this rank's place.
  Rooms(const Members& members, std::uint32_t own, CallTable& calls, Execution& execution, Failures& failures,
        Outbox& outbox)
      : members_(members), own_(own), calls_(calls), execution_(execution), failures_(failures), outbox_(outbox) {}

  // On the leader, of what all ranks of the node have called. False: it has failed.
  bool make(Operation& operation);
  // On the leader, which knows the sizes of an all-gather. Whether it is to flow now.
  bool make_for_blocks(Operation& operation);
  // On another rank, to which the leader has said the sizes.
  void answer(Operation& operation);
  // On the leader: what another rank has answered. Whether that operation is to flow now.
  bool hear_answer(std::uint32_t place, const Record& record, Time now);

 private:
  bool note(Operation& operation, std::uint32_t place, const Status& problem);
  void fail(Operation& operation, const Status& why);

  const Members& members_;
  const std::uint32_t own_;
  CallTable& calls_;
  Execution& execution_;
  Failures& failures_;
  Outbox& outbox_;
};

}  // namespace shoal::local
