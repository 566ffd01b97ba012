#include "protocol/local/rooms.h"

#include <bit>

namespace shoal::local {

bool Rooms::make(Operation& operation) {
  // An all-reduce lies in the leader's output.
  const Status problem =
      traits_of(operation.opening.collective).shares_results() ? Status() : execution_.make_room(operation);
  if (!problem.ok()) {
    fail(operation, problem);
  }
  return problem.ok();
}

bool Rooms::make_for_blocks(Operation& operation) { return note(operation, own_, execution_.make_room(operation)); }

void Rooms::answer(Operation& operation) {
  const Status problem = execution_.make_room(operation);
  outbox_.say(RecordKind::ready, operation.key, problem.ok() ? wire::Bytes() : wire::encode(wire::Failure{problem}));
}

// What has failed meanwhile nobody waits for.
bool Rooms::hear_answer(std::uint32_t place, const Record& record, Time now) {
  Operation* const operation = own_ == 0 ? calls_.find(record.key) : nullptr;
  if (operation == nullptr || operation->state != Operation::State::complete || operation->ready == 0 ||
      execution_.is_admitted(record.key)) {
    return false;
  }
  operation->lateness.note_moved(now);
  return note(*operation, place, record.body.empty() ? Status() : decoded_status(record.body));
}

bool Rooms::note(Operation& operation, std::uint32_t place, const Status& problem) {
  if (!problem.ok()) {
    fail(operation, problem);
    return false;
  }
  operation.ready |= std::uint64_t{1} << place;
  const bool all = std::popcount(operation.ready) == static_cast<int>(members_.size());
  if (all) {
    execution_.admit(operation.key);
  }
  return all;
}

void Rooms::fail(Operation& operation, const Status& why) {
  failures_.fail_complete(operation, why);
  execution_.forget(operation.submission.handle);
  calls_.end(operation, why);
  calls_.forget_if_done(operation);
}

}  // namespace shoal::local
