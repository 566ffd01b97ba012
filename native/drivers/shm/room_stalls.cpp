// What a room does about operations that do not move: whom they wait for is said in a warning after 10 s, then at
// doubling intervals, and in the error when an operation's time is out. Then what not all ranks of the node have called
// fails on all of them, and the job goes on. The first rank decides it, whoever's time is out.
//
// Without an uplink, ranks begin with small operations as soon as they see that all have called them, and ask nobody.
// So the first rank may not say that one has failed while somebody begins with it. It says first that the operation is
// withheld, then looks who has called it: if all have, it goes on, else it fails. A rank that sees that all have called
// it reads what the first rank has said, once more, before it begins. The order of these steps is the same for all
// (they are sequentially consistent), so whoever saw a call that the first rank did not see finds that it is withheld.
//
// With an uplink it fails on all nodes. What has gone up fails when the network says so.
//
// A rank that does not do its part in time ends everything, and so does a first rank that does not answer: nobody can
// say any more who has what, and a wrong number would be worse.
#include <algorithm>
#include <utility>

#include "drivers/shm/room_impl.h"
#include "protocol/agreement.h"
#include "protocol/progress.h"

namespace shoal::shm {

// What is behind others waits for its turn: their progress counts.
Time Room::Impl::moved(const Operation& operation) const {
  return operation.state == Operation::State::flowing ? std::max(operation.moved, flowed_) : operation.moved;
}

// For what the first rank or the network says of it: the network's time-out, and the time to hear of it.
Time Room::Impl::longest_wait(const Operation& operation) const {
  return 2 * operation.submission.timeout + 3 * others_first;
}

void Room::Impl::look_at_the_time() {
  if (next_check_ == never || now() < next_check_) {
    return;
  }
  const Time time = now();
  next_check_ = never;
  std::vector<Operation*> open;
  for (const auto& [key, operation] : operations_) {
    if (operation->called && operation->state != Operation::State::over) {
      open.push_back(operation.get());
    }
  }
  std::vector<const Operation*> late;
  for (Operation* operation : open) {
    if (check(*operation, time)) {
      late.push_back(operation);
    }
    if (!broken_.ok()) {
      return;
    }
  }
  warn_of(late, time);
  // Where very many are open, whose times come one after the other, looking at them is not all that is done.
  next_check_ = next_check_ == never ? never : std::max(next_check_, now() + 10 * (now() - time));
}

// Of the one that waits longest. What keeps it keeps the others, as a rule.
void Room::Impl::warn_of(const std::vector<const Operation*>& late, Time time) {
  if (late.empty()) {
    return;
  }
  const Operation& first = **std::min_element(late.begin(), late.end(), [this](const Operation* a, const Operation* b) {
    return std::pair(moved(*a), a->opening.name) < std::pair(moved(*b), b->opening.name);
  });
  const std::size_t others = late.size() - 1;
  world_.warn(describe(first.opening) + " '" + first.opening.name + "' " + stall_text(first, time) +
              (others == 0   ? ""
               : others == 1 ? "; another operation does not move either"
                             : "; " + std::to_string(others) + " other operations do not move either"));
}

// Whether it is late.
bool Room::Impl::check(Operation& operation, Time time) {
  const Time since = moved(operation);
  const bool gathers = operation.state == Operation::State::gathering;
  const bool others_end_it = operation.overdue || (has_uplink_ && !gathers);
  const Time timeout = others_end_it ? longest_wait(operation) : operation.submission.timeout;
  if (since + timeout <= time) {
    time_out(operation, time);
    return false;
  }
  const bool late = since + operation.late_after <= time;
  operation.late_after *= late ? 2 : 1;
  check_by(since + std::min(timeout, operation.late_after));
  return late;
}

void Room::Impl::time_out(Operation& operation, Time time) {
  const Status why =
      Status::error(Code::timeout,
                    "'" + operation.opening.name + "' " + stall_text(operation, time) +
                        "; see what is late there (py-spy dump), or raise the timeout of this group, or SHOAL_TIMEOUT",
                    in_job(rank_));
  if (operation.state == Operation::State::gathering && !operation.overdue) {
    fail_gathering(operation, why);
  } else {
    give_up(why);
  }
}

// Not all ranks of the node have called it, and it cannot be waited for any longer: the first rank decides.
void Room::Impl::fail_gathering(Operation& operation, const Status& why) {
  if (is_first() && has_uplink_) {
    fail_everywhere(operation, operation.opening.collective, why);
  } else if (is_first()) {
    withhold(operation, why);
  } else {
    operation.overdue = true;
    say(Kind::overdue, operation.key, wire::encode(wire::Failure{why}));
    check_by(moved(operation) + longest_wait(operation));
  }
}

// On the first rank.
void Room::Impl::withhold(Operation& operation, const Status& why) {
  if (!std::exchange(operation.withheld, true)) {
    say(Kind::withhold, operation.key);
    doubted_.emplace_back(operation.key, why);
  }
}

// Once the others can read that they are withheld. Whether there were any.
bool Room::Impl::settle_doubts() {
  const bool any = !doubted_.empty() && unsaid_.empty();
  while (!doubted_.empty() && unsaid_.empty()) {
    const auto [key, why] = std::move(doubted_.front());
    doubted_.pop_front();
    read_all();
    Operation* const operation = find(key);
    if (!broken_.ok() || operation == nullptr) {
      continue;
    }
    operation->withheld = false;
    // What has failed meanwhile for what others have called fails so on every rank.
    if (operation->opened == ranks_ || operation->state != Operation::State::gathering) {
      say(Kind::go_on, key);
      proceed(*operation);
      continue;
    }
    say(Kind::failed, key, wire::encode(wire::Failure{why}));
    operation->verdict = why;
    if (operation->called) {
      end(*operation, why);
    }
  }
  return any;
}

std::string Room::Impl::stall_text(const Operation& operation, Time time) const {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!operation.calls[rank].opened) {
      missing.push_back(rank);
    }
  }
  std::string why = " has not called it";
  if (operation.parts + operation.lent_parts > 0 && is_first()) {
    why = " does not take its result";
    missing = delivery_.late();
  } else if (missing.empty() && has_uplink_ && (operation.flowed || operation.state != Operation::State::flowing)) {
    why = " averages it with the other nodes";
    missing = {0};
  } else if (missing.empty() && operation.state == Operation::State::flowing) {
    why = " does not do its part";
    missing = flow_.late();
  } else if (missing.empty()) {
    why = ", which decides on the order, does not answer";
    missing = {0};
  }
  if (missing.size() > 1 && operation.state == Operation::State::gathering) {
    why = " have not called it";
  }
  return "has not moved on " + name_of(rank_) + " for " + seconds_text(time - moved(operation)) + ": " +
         names_of(missing) + why;
}

}  // namespace shoal::shm
