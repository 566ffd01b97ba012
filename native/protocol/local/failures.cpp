#include "protocol/local/failures.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/invariant.h"
#include "protocol/agreement.h"
#include "protocol/keys.h"

namespace shoal::local {

namespace {

// Who on the other nodes waits for an operation that has failed here, as the leader tells the others.
constexpr std::uint8_t internode_waits = 1;
constexpr std::uint8_t workers_wait = 2;

}  // namespace

// --- What stands against an operation ---

void Failures::fail(Operation& operation, const Status& why) {
  if (!operation.assembling()) {
    return;
  }
  if (has_other_nodes_) {
    operation.internode_state.dispute(why);
    settle_dispute(operation);
  } else {
    calls_.end(operation, why);
  }
}

void Failures::note_failed_call(Operation& operation) {
  if (has_other_nodes_) {
    operation.internode_state.dispute(failed_before(operation.opening, members_.rank_of(own_), members_.config()));
  }
}

void Failures::note_left(std::uint32_t place) {
  calls_.note_left(place);
  for (Operation* const operation : calls_.lacking(place)) {
    fail_without(*operation, place);
    settle_dispute(*operation);
    calls_.forget_if_done(*operation);
  }
  if (is_first()) {
    tell_alone(place);
  }
}

bool Failures::tell_alone(std::uint32_t place) {
  std::vector<std::pair<Operation*, Status>> untold;
  if (has_other_nodes_) {
    for (const auto& [key, operation] : calls_.all()) {
      if (!operation->calls.opened(place) || operation->internode_state.is_network_told()) {
        continue;
      }
      const wire::Opening opening =
          place == own_ ? operation->opening : operation->calls.opening_of(place, operation->opening);
      if (opening.failed) {
        untold.emplace_back(operation.get(), failed_before(opening, members_.rank_of(place), members_.config()));
      }
    }
  }
  for (const auto& [operation, why] : untold) {
    fail_everywhere(*operation, why);
    calls_.forget_if_done(*operation);
  }
  return !untold.empty();
}

void Failures::fail_without(Operation& operation, std::uint32_t place) {
  const Status why = members_.left_status(operation.opening.name, place);
  if (!calls_.decides() && place == 0 && operation.is_open()) {
    calls_.end(operation, why);  // who would have said it
  } else {
    fail(operation, why);
  }
}

void Failures::settle_dispute(Operation& operation) {
  if (!operation.internode_state.disputed() || !is_first() || operation.internode_state.is_network_told()) {
    return;
  }
  const std::optional<wire::Opening> opening = operation.any_opening();
  if ((opening && !opening->failed) || calls_.nobody_else_calls(operation)) {
    fail_everywhere(operation, *operation.internode_state.disputed());
  }
}

// --- What cannot be waited for ---

void Failures::fail_late(Operation& operation, const Status& why) {
  if (is_first() && has_other_nodes_) {
    fail_everywhere(operation, why);
  } else if (is_first()) {
    announce(operation, why);
  } else {
    operation.overdue = true;
    outbox_.say(RecordKind::overdue, operation.key, wire::encode(wire::Failure{why}));
    watch_.watch_for_verdict(operation);
  }
}

void Failures::read_overdue(const Record& record) {
  Operation* const operation = calls_.find(record.key);
  if (is_first() && operation != nullptr && operation->assembling() && !operation->calls.all() &&
      !operation->internode_state.is_network_told()) {
    fail_late(*operation, decoded_status(record.body));
  }
}

void Failures::announce(Operation& operation, const Status& why) {
  if (!std::exchange(operation.fail_pending, true)) {
    outbox_.say(RecordKind::fail_pending, operation.key);
    pending_.emplace_back(operation.key, why);
    watch_.watch_for_verdict(operation);  // a rank may read nothing, so that there is no room to say it
  }
}

// All that the others have called is read.
Operation* Failures::decide_next() {
  const auto [key, why] = std::move(pending_.front());
  pending_.pop_front();
  Operation* const operation = calls_.find(key);
  if (operation == nullptr) {
    return nullptr;
  }
  operation->fail_pending = false;
  // What has failed meanwhile for what others have called fails so on every rank.
  if (operation->calls.all() || !operation->assembling()) {
    outbox_.say(RecordKind::go_on, key);
    return operation;
  }
  outbox_.say(RecordKind::failed, key, wire::encode(wire::Failure{why}));
  operation->internode_state.decide(why);
  if (operation->is_open()) {
    calls_.end(*operation, why);
  }
  return nullptr;
}

// --- Other nodes ---

// On the leader.
void Failures::fail_everywhere(Operation& operation, const Status& why) {
  const bool goes_up = operation.may_be(true);
  const bool is_handed_over = operation.may_be(false);
  wire::Bytes waiting;
  if (goes_up) {
    waiting.push_back(std::byte{internode_waits});
  }
  if (is_handed_over) {
    waiting.push_back(std::byte{workers_wait});
  }
  outbox_.say(RecordKind::failed, operation.key, wire::encode(wire::Failure{why}), waiting);
  tell_worker(operation, waiting, why);
  operation.internode_state.decide(why);
  if (operation.is_open()) {
    calls_.end(operation, why);
  }
}

// Of an all-gather, the leaders' second operation fails: the first has brought the sizes.
void Failures::fail_complete(Operation& operation, const Status& why) {
  Submission failed = submission_failed(operation.opening, operation.group->internode->group, why);
  if (!operation.block_sizes.empty()) {
    failed.occurrence = *failed.occurrence | second_of_leaders;
  }
  world_.open_as_failed(std::move(failed));
  outbox_.say(RecordKind::failed, operation.key, wire::encode(wire::Failure{why}));
  operation.internode_state.decide(why);
}

// The other nodes may wait for it: for the leader in what goes up, for every rank in everything else.
void Failures::tell_worker(Operation& operation, ConstBytes waiting, const Status& why) {
  const std::optional<wire::Opening> opening = operation.any_opening();
  if (!operation.internode_state.tell_network() || !opening) {
    return;
  }
  const Group* const group = calls_.group_of(opening->group);
  if (group == nullptr) {
    return;
  }
  for (const std::byte what : waiting) {
    if (what == std::byte{workers_wait}) {
      world_.open_as_failed(submission_failed(*opening, group->number, why));
    } else if (is_first()) {
      world_.open_as_failed(submission_failed(*opening, group->internode->group, why));
    }
  }
}

bool Failures::any_untold() const {
  if (!has_other_nodes_ || calls_.has_left(0)) {
    return false;
  }
  const auto is_untold = [](const auto& entry) {
    const Operation& operation = *entry.second;
    return operation.called && operation.opening.failed && !operation.internode_state.is_network_told();
  };
  return std::any_of(calls_.all().begin(), calls_.all().end(), is_untold);
}

void Failures::check_invariants() const {
  SHOAL_INVARIANT(pending_.empty() || (is_first() && !has_other_nodes_));
  for (const auto& [key, why] : pending_) {
    const Operation* const operation = calls_.find(key);
    SHOAL_INVARIANT(operation == nullptr || operation->fail_pending);
  }
}

}  // namespace shoal::local
