#include "protocol/server/endings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "protocol/server/rivals.h"

namespace shoal::server {

using wire::Type;

namespace {

// How long the home waits for the other openings once two disagree, so that the message can name them all.
constexpr Time conflict_wait = second * 3 / 10;

}  // namespace

Endings::Endings(const Terms& terms, OperationTable& operations, Links& links, Credit& credit, Receipts& receipts,
                 Summation& flow)
    : terms_(terms), operations_(operations), links_(links), credit_(credit), receipts_(receipts), summation_(flow) {}

void Endings::set_alarm(const Operation& operation, Time now) {
  const Time when = now + conflict_wait;
  if (alarm_times_.emplace(operation.serial(), when).second) {
    alarms_.emplace(when, operation.serial());
  }
}

void Endings::clear_alarm(const Operation& operation) {
  if (operation.has_conflict()) {
    if (const auto found = alarm_times_.find(operation.serial()); found != alarm_times_.end()) {
      alarms_.erase({found->second, found->first});
      alarm_times_.erase(found);
    }
  }
}

void Endings::on_time(Time now) {
  while (deadline() <= now) {
    fail_for_conflict(*operations_.find(alarms_.begin()->second));
  }
}

void Endings::begin_epoch() {
  alarms_.clear();
  alarm_times_.clear();
}

// The home of an operation that is cut into shards is kept until all are done with it: a member may yet report that it
// failed.
void Endings::end_flow(Operation& operation) {
  const std::uint64_t serial = operation.serial();
  if (operation.is_home() && !terms_.is_small(operation.attributes())) {
    operation.close();
    drop_finished(operation);
    remove_if_done(operation);
  } else {
    remove(operation);
  }
  receipts_.end(serial);
}

// Not with `why` ok: a rival that is open then has an alarm.
void Endings::fail(Operation& operation, Status why) {
  Operation* const rival = operation.is_home() && !why.ok() ? operations_.rival(operation) : nullptr;
  if (rival != nullptr && rival->is(Operation::State::assembling)) {
    fail_alone(*rival, why);
  }
  fail_alone(operation, std::move(why));
  remove_if_done(operation);
}

void Endings::fail_alone(Operation& operation, Status why) {
  release(operation);
  clear_alarm(operation);
  operation.fail(std::move(why));
  receipts_.forget(operation.serial());
  drop_finished(operation);
  for (std::size_t i = 0; operation.tells_failure() && i < operation.size(); ++i) {
    if (operation.member(i).opened && !operation.member(i).dropped) {
      tell_failure(operation, i);
    }
  }
}

bool Endings::meet(Operation& operation, Operation& rival, Time now) {
  if (rival.is(Operation::State::failed) && rival.tells_failure()) {
    fail(operation, rival.failure());
    return true;
  }
  for (Operation* const one : {&operation, &rival}) {
    if (one->is(Operation::State::assembling)) {
      set_alarm(*one, now);
      one->note_conflict();
    }
  }
  return false;
}

void Endings::fail_for_conflict(Operation& operation) {
  const Operation* const rival = operations_.rival(operation);
  fail(operation, Status::error(Code::mismatch, mismatch_text(operation, rival, terms_.config())));
}

void Endings::tell_failure(Operation& operation, std::size_t index) {
  const std::uint32_t rank = operation.rank(index);
  credit_.answer(rank, 0, operation.take_eager(index));
  links_.send(rank, {.type = Type::fail, .operation = operation.member(index).number},
              wire::encode(wire::Failure{operation.failure()}));
}

void Endings::drop_finished(Operation& operation) {
  for (std::size_t i = 0; i < operation.size(); ++i) {
    const Member& member = operation.member(i);
    if (!member.opened || member.dropped || !(member.opening.finished || member.ended)) {
      continue;
    }
    drop(operation, i);
    if (operation.is(Operation::State::failed) && !member.opening.failed) {
      links_.tell_settled(operation.rank(i), member.number, false);
    }
  }
}

void Endings::release(Operation& operation) {
  summation_.release(operation);
  operation.discard_inline_data();
}

void Endings::drop(Operation& operation, std::size_t index) {
  operations_.drop(operation, index);
  credit_.answer(operation.rank(index), 0, operation.take_eager(index));
}

void Endings::remove_if_done(Operation& operation) {
  Operation* rival = operation.is_home() ? operations_.rival(operation) : nullptr;
  if (rival != nullptr && !(operation.is(Operation::State::failed) && rival->is(Operation::State::failed))) {
    rival = nullptr;
  }
  if (!is_done(operation, rival) || (rival != nullptr && !is_done(*rival, &operation))) {
    return;
  }
  remove(operation);
  if (rival != nullptr) {
    remove(*rival);
  }
}

bool Endings::is_done(const Operation& operation, const Operation* rival) const {
  const std::vector<Member>& members = operation.members();
  if (std::any_of(members.begin(), members.end(), [](const Member& one) { return one.opened && !one.dropped; })) {
    return false;
  }
  const bool is_tombstone = operation.is_home() && operation.is(Operation::State::failed);
  for (std::size_t i = 0; is_tombstone && i < members.size(); ++i) {
    const std::uint32_t rank = operation.rank(i);
    const bool is_gone = links_.has_left(rank) || links_.is_lost(rank);
    const bool may_come = !is_gone && (rival == nullptr || !went_to_rival(operation, i, *rival, terms_.config()));
    if (!members[i].opened && may_come) {
      return false;
    }
  }
  return true;
}

void Endings::remove(Operation& operation) {
  release(operation);
  for (std::size_t i = 0; i < operation.size(); ++i) {
    if (operation.member(i).opened && !operation.member(i).dropped) {
      drop(operation, i);
    }
  }
  if (operation.is(Operation::State::failed) && operation.is_home()) {
    // A member whose link broke may open it again at another server, and the others must then still know that it
    // failed.
    const std::vector<std::uint32_t>& ranks = operation.group().ranks;
    const bool all_know = std::none_of(ranks.begin(), ranks.end(), [this](std::uint32_t rank) {
      return links_.is_lost(rank) && !links_.has_left(rank);
    });
    for (std::size_t i = 0; all_know && i < operation.size(); ++i) {
      if (operation.member(i).opened) {
        links_.tell_settled(operation.rank(i), operation.member(i).number, false);
      }
    }
  }
  clear_alarm(operation);
  operations_.remove(operation);
}

void Endings::check_invariants() const {
  SHOAL_INVARIANT(alarms_.size() == alarm_times_.size());
  for (const auto& [when, serial] : alarms_) {
    const Operation& operation = operations_.at(serial);
    SHOAL_INVARIANT(operation.is_home() && operation.has_conflict());
    SHOAL_INVARIANT(operation.is(Operation::State::assembling));
  }
}

}  // namespace shoal::server
