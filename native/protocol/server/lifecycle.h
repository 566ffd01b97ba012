// The life of operations on a server, from the first opening until nobody needs to know of them:
// docs/protocol/lifecycle.md and recovery.md. This class matches openings and decides when an operation is admitted,
// resumed or settled; endings.h decides how it ends. The other parts carry out what is decided.
//
//   For each worker, unanswered DATA = contributions to segments + sums in progress + what a root waits for.
//   For each worker, unanswered inline data = that of its operations.
//   An admitted operation has a receipt until all have their results; a failed one has none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/machine.h"
#include "protocol/server/absence.h"
#include "protocol/server/admission.h"
#include "protocol/server/block_transfers.h"
#include "protocol/server/credit.h"
#include "protocol/server/endings.h"
#include "protocol/server/epochs.h"
#include "protocol/server/groups.h"
#include "protocol/server/joined.h"
#include "protocol/server/links.h"
#include "protocol/server/operation.h"
#include "protocol/server/operation_table.h"
#include "protocol/server/queue.h"
#include "protocol/server/receipts.h"
#include "protocol/server/results.h"
#include "protocol/server/summation.h"
#include "protocol/server/terms.h"
#include "wire/late.h"

namespace shoal::server {

class Lifecycle {
 public:
  Lifecycle(const Terms& terms, const Epochs& epochs, const Groups& groups, const Absence& absence, Joined& joined,
            Links& links, Credit& credit, ServerWorld& world, BufferPool& pool);

  // What workers say of operations, by the workers' numbers. An operation whose number is not known has ended here.
  Status open(const Group& group, std::size_t index, std::uint64_t number, wire::Opening opening,
              Contribution inline_data, Time now);
  Status check_data(std::uint32_t rank, const wire::Header& header);
  void contribute(std::uint32_t rank, const wire::Header& header, Buffer payload);
  void ask_to_fail(std::uint32_t rank, std::uint64_t number, Status why);
  // `well`: the member's handle is done, and it may yet send what others lack.
  void drop(std::uint32_t rank, std::uint64_t number, bool well);

  // The member has joined: it hears what the others have called and it has not.
  void tell_what_was_called(const Group& group, std::size_t index);

  // What becomes of workers. lose(): the link broke. be_absent(): the worker opens nothing more.
  void lose(std::uint32_t rank);
  void be_absent(std::uint32_t rank);
  // Members forget an operation when they know that all have its results. So an operation is over when all its members
  // have opened again what was open there, and none that has opened it lacks anything. Only a member whose link broke
  // may still lack it, and open it at another server in the next epoch.
  void settle_what_all_have();
  // Forgets all operations: workers open again what is not over for all.
  void begin_epoch();

  void summed(Token token);
  void written(const Links::Written& frame);
  void on_time(Time now) { endings_.on_time(now); }
  Time deadline() const { return endings_.deadline(); }

  OperationTable& operations() { return operations_; }
  const OperationTable& operations() const { return operations_; }
  Receipts& receipts() { return receipts_; }
  const Results& results() const { return results_; }

  void check_invariants() const;

 private:
  using State = Operation::State;

  void opened(Operation& operation, std::size_t index, Time now);
  void tell_called(const Operation& operation, std::size_t index);
  // There is no room for an operation: it fails on all its members.
  void refuse(Operation& operation);
  void admit(Operation& operation);
  // Whether its segments may become longer than its members think.
  static bool may_lengthen(const Operation& operation);
  // `full`: in full segments, though it is short.
  void start(Operation& operation, bool full);
  void resume(Operation& operation, Range shard, std::uint32_t segment);
  // Nobody lacks anything of it.
  void settle(Operation& operation);
  bool all_complete(const Operation& operation) const;
  // Whether nobody can need the member any more, which has the result, and stayed for those who may lack it.
  bool can_spare(const Operation& operation, std::size_t index) const;
  // Fails the operation if it can never be complete, since a member is absent. Whether it has failed.
  bool fail_without_absent(Operation& operation);
  static bool needs_again(const Operation& operation, std::size_t index);

  const Terms& terms_;
  const Epochs& epochs_;
  const Absence& absence_;
  Joined& joined_;
  Links& links_;
  Credit& credit_;
  Queue queue_;  // the operations' places are in it
  OperationTable operations_;
  Receipts receipts_;
  Results results_;
  Admission admission_;
  Summation summation_;
  BlockTransfers transfers_;
  Endings endings_;
};

}  // namespace shoal::server
