#include "protocol/worker/operations.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"

namespace shoal::worker {

using wire::Type;

Operations::Operations(const Environment& environment, const Groups& groups, const LostRanks& lost_ranks, Links& links,
                       ServerFrames& frames, Goodbye& goodbye)
    : environment_(environment),
      lost_ranks_(lost_ranks),
      frames_(frames),
      goodbye_(goodbye),
      submissions_(environment, groups, lost_ranks, goodbye, table_),
      sender_(environment, table_, frames),
      transfers_(environment, table_, links),
      window_(environment, links, frames),
      progress_(environment, table_, links, frames) {}

// --- Submission ---

void Operations::submit(Submission submission) {
  if (!submission.awaits_input || !submissions_.hold(submission)) {
    open(std::move(submission), false);
  }
}

void Operations::input_ready(std::uint64_t handle, const std::string& problem) {
  if (std::optional<Submission> submission = submissions_.release(handle, problem)) {
    open(std::move(*submission), true);
    say_goodbye_if_done();  // it may have ended at once
  }
}

void Operations::open(Submission&& submission, bool was_held) {
  std::unique_ptr<Operation> made = submissions_.take(std::move(submission), was_held);
  if (made == nullptr) {
    return;
  }
  Operation& operation = table_.open(std::move(made));
  sender_.plan(operation);
  submissions_.count(operation);
  if (!operation.failed_here()) {
    progress_.watch(operation);
  }
  sender_.open(operation, false);
}

void Operations::contributed(std::uint64_t handle, Range range) {
  Operation* operation = table_.find_streamed(handle);
  if (operation == nullptr) {
    return;
  }
  const Range contributed = operation->add_contributed(range);
  if (contributed.empty() && operation->submission().offset) {
    return;  // it is another channel's
  }
  operation->watch().move(environment_.now());
  if (operation->gathers()) {
    transfers_.send_on(*operation);
    end_if_transferred(*operation);
    return;
  }
  for (const Part& part : operation->parts()) {
    if (!intersection(part.shard(), contributed).empty()) {
      sender_.send_on(part.server());
    }
  }
}

void Operations::move_join(const Hash128& group) {
  const auto waits_there = [&group](const Operation& operation) {
    return operation.group().id == group && operation.name() == join_name;
  };
  for (const std::uint64_t number : table_.open_where(waits_there)) {
    table_.find(number)->watch().move(environment_.now());
  }
}

// --- What servers say ---

Status Operations::receive_from_server(std::uint32_t server, Frame& frame) {
  const wire::Header& header = frame.header;
  if (!sender_.add_credit(server, header.credit)) {
    return refused("more credit than there can be");
  }
  if (header.type == Type::result || header.type == Type::sizes) {
    frames_.count_result(server);
    progress_.note_result(server);
  }
  // Frames for operations that have ended count for their credit only.
  Status status;
  switch (header.type) {
    case Type::sizes:
      status = receive_sizes(server, frame);
      break;
    case Type::have:
      status = receive_have(server, frame);
      break;
    case Type::late:
      status = progress_.receive_late(server, frame);
      break;
    case Type::fail:
      status = receive_failure(server, frame);
      break;
    case Type::admit:
      status = receive_admit(server, frame);
      break;
    case Type::result:
      status = receive_result(server, frame);
      break;
    default:
      break;
  }
  sender_.send_on(server);
  return status;
}

// Servers admit what all members have opened, and answer nothing else.
void Operations::note_all_called(Operation& operation) const {
  if (operation.hears_that_all_called()) {
    environment_.world().reached(operation.handle(), WorkerWorld::Milestone::all_called);
  }
}

void Operations::note_first_result(Operation& operation) const {
  note_all_called(operation);
  if (operation.has_first_result()) {
    environment_.world().reached(operation.handle(), WorkerWorld::Milestone::first_result);
  }
}

void Operations::admit(Operation& operation, Part& part, bool full) {
  note_all_called(operation);
  sender_.admit(operation, part, full);
  if (window_.measures() && !operation.is_measured() && !operation.is_finished() && !operation.is_small()) {
    operation.set_measured(true);
    window_.begin_measuring();
  }
}

Status Operations::receive_result(std::uint32_t server, Frame& frame) {
  Operation* found = table_.find_going_on(frame.header.operation);
  if (found == nullptr || found->failed_here()) {
    return {};
  }
  Operation& operation = *found;
  const Submission& s = operation.submission();
  const wire::Header& header = frame.header;
  operation.watch().move(environment_.now());
  note_first_result(operation);
  Part& part = operation.part_of(server);
  const Range segment = sender_.answered(operation, part);
  if (!part.is_admitted() && operation.needs_admission() && !part.all_sent()) {
    admit(operation, part, false);  // no ADMIT has said it
  }
  if (operation.is_small()) {
    operation.keep_input(environment_.pool());
  }
  if (header.length > 0) {
    // The first moment at which the result replaces the contribution: it is whole.
    const Range placed = operation.place(header.offset, {frame.payload.data(), header.length});
    if (s.streamed) {
      const std::uint64_t offset = s.offset.value_or(0);
      environment_.world().received(s.handle, {offset + placed.begin, offset + placed.end});
    }
  }
  if (operation.shares_results() && !operation.is_finished()) {
    part.results().add(segment, std::move(frame.payload), header.acknowledged);
  }
  if (operation.is_measured()) {
    window_.answered(segment.size(), operation.group().senders);
  }
  part.finish_if_last((header.flags & wire::flag_last) != 0);
  // By a handle of somebody's, which ends when it is known that all have it.
  const bool is_waited_for = part.is_done() && !operation.is_small() && traits_of(s.collective).needs_contributors();
  if (!operation.is_finished()) {
    end_if_done(operation);
  }
  if (is_waited_for) {
    frames_.acknowledge(environment_.now());
  }
  return {};
}

// What the server lacks of an operation from an epoch before, and what this worker lacks of it.
Status Operations::receive_admit(std::uint32_t server, const Frame& frame) {
  Operation* operation = table_.find_going_on(frame.header.operation);
  if (operation == nullptr || operation->failed_here()) {
    return {};
  }
  Part& part = operation->part_of(server);
  operation->watch().move(environment_.now());
  const bool full = (frame.header.flags & wire::flag_full) != 0;
  if (full && ((frame.header.flags & wire::flag_resumed) != 0 || !sender_.may_be_full(*operation, part))) {
    return refused("ADMIT of '" + operation->name() + "' in full segments, which it cannot have");
  }
  admit(*operation, part, full);
  if ((frame.header.flags & wire::flag_resumed) == 0) {
    return {};
  }
  std::vector<wire::MissingRange> missing;
  if (Status status = wire::decode(frame.bytes(), part.shard(), missing); !status.ok()) {
    return status;
  }
  const bool possible = std::all_of(missing.begin(), missing.end(), [operation](const wire::MissingRange& one) {
    return (operation->contributes() || !one.sends) && (operation->lacks(one.range) || !one.receives);
  });
  if (!possible) {
    return refused("ADMIT of '" + operation->name() + "' with ranges that this rank cannot send or has");
  }
  sender_.answered_inline(part);
  part.resume(std::move(missing));
  sender_.send_followers(*operation, server);
  if (part.is_done() && !operation->is_finished()) {
    end_if_done(*operation);
  }
  return {};
}

Status Operations::receive_failure(std::uint32_t server, const Frame& frame) {
  Operation* operation = table_.find_going_on(frame.header.operation);
  if (operation == nullptr || operation->is_finished()) {
    return {};
  }
  wire::Failure failure;
  if (Status status = wire::decode(frame.bytes(), failure); !status.ok()) {
    return status;
  }
  if (server != operation->home()) {
    // It cannot be completed there. That it fails is the home's to say, to all.
    progress_.ask_home_to_fail(*operation, std::move(failure.status));
    return {};
  }
  operation->set_failure(failure.status);
  failure.status.message = std::string(name_of(operation->submission().collective)) + " " + failure.status.message;
  end(*operation, std::move(failure.status));
  return {};
}

Status Operations::receive_sizes(std::uint32_t server, const Frame& frame) {
  std::optional<Status> problem;
  if (Status status = transfers_.receive_sizes(server, frame, problem); !status.ok()) {
    return status;
  }
  Operation* operation = table_.find(frame.header.operation);
  if (operation == nullptr || operation->failed_here()) {
    return {};
  }
  if (problem) {
    progress_.ask_home_to_fail(*operation, *problem);
    problem->message = std::string(name_of(operation->submission().collective)) + " " + problem->message;
    end(*operation, std::move(*problem));
    return {};
  }
  note_all_called(*operation);
  sender_.answered_inline(operation->only_part());
  end_if_transferred(*operation);
  return {};
}

Status Operations::receive_have(std::uint32_t server, const Frame& frame) {
  std::vector<std::uint64_t> numbers;
  if (Status status = wire::decode_numbers(frame.bytes(), numbers); !status.ok()) {
    return status;
  }
  for (const std::uint64_t number : numbers) {
    Operation* operation = table_.find_any(number);
    if (operation == nullptr || (operation->failed_here() && !operation->is_finished())) {
      continue;
    }
    if (!operation->has_part(server)) {
      return refused("HAVE of '" + operation->name() + "' from a server that has no part in it");
    }
    if (!operation->has_result_of(operation->part_of(server))) {
      return refused("HAVE of '" + operation->name() + "', whose result has not come");
    }
    settle(*operation, server);
  }
  return {};
}

// All members have what they get from this server.
void Operations::settle(Operation& operation, std::uint32_t server) {
  operation.settle(server);
  sender_.send_followers(operation, server);
  if (operation.is_finished()) {
    sender_.answered_all(operation.part_of(server));
    if (operation.all_settled()) {
      forget(operation.number());
    }
    return;
  }
  operation.watch().move(environment_.now());
  if (operation.needs_admission()) {
    operation.part_of(server).finish();
    end_if_done(operation);
  }
}

// --- What other workers say ---

Status Operations::receive_from_peer(std::uint32_t rank, Frame& frame) {
  Operation* operation = transfers_.find(frame.header.operation);
  Status status = transfers_.receive(rank, frame);
  if (status.ok() && operation != nullptr) {
    // What a ring passes on are sums of some members, and grants are no bytes.
    const bool is_result = operation->gathers() && frame.header.type == Type::data;
    is_result ? note_first_result(*operation) : note_all_called(*operation);
    end_if_transferred(*operation);
  }
  return status;
}

// The coordinator would have declared the rank lost if it had not left. What it sent before it left has not come, and
// never will.
bool Operations::fail_lacking(std::uint32_t rank) {
  const std::vector<Operation*> lacking = transfers_.lacking(rank);
  for (Operation* operation : lacking) {
    progress_.ask_home_to_fail(
        *operation,
        Status::error(Code::peer_lost,
                      "'" + operation->name() + "' needs what " + rank_text(rank, environment_.config()) +
                          " sent: its connection to " + environment_.own_name() + " ended before all of it had come",
                      static_cast<std::int32_t>(rank)));
  }
  return !lacking.empty();
}

// --- What the driver has done ---

void Operations::sent(Token number) {
  Operation* operation = table_.find_any(number);
  if (operation != nullptr && operation->count_sent() && !operation->is_finished()) {
    end_if_transferred(*operation);
  }
}

void Operations::summed(Token token) {
  Operation& operation = transfers_.end_sum(token);
  if (operation.ends_later()) {
    if (operation.ring()->sums() == 0) {
      end(operation, *operation.ends_later());
    }
    return;
  }
  transfers_.proceed(operation);
  end_if_transferred(operation);
}

void Operations::on_time() {
  const bool asked = progress_.asks();
  while (Operation* due = progress_.take_due()) {
    if (std::optional<Status> why = progress_.check(*due)) {
      due->set_failure(due->watch().why_given_up());
      end(*due, std::move(*why));
    }
  }
  progress_.end_checks(asked);
  for (const std::uint64_t handle : submissions_.take_late()) {
    input_ready(handle, input_is_late);
  }
}

// --- Ends ---

void Operations::end_if_done(Operation& operation) {
  if (operation.is_done()) {
    end(operation, {});
  }
}

void Operations::end_if_transferred(Operation& operation) {
  if (operation.is_transferred()) {
    operation.only_part().finish();
    end_if_done(operation);
  }
}

// Ends the handle, and forgets the operation or keeps what others may need of it.
void Operations::end(Operation& operation, Status status) {
  if (!status.ok() && operation.failure().ok()) {
    operation.set_failure(status);
  }
  if (operation.ring() && operation.ring()->sums() > 0) {
    operation.end_later(std::move(status));
    return;
  }
  close(operation, status);
  std::vector<std::uint32_t> servers;
  if (!status.ok() && !lost_ranks_.job_has_ended()) {
    for (const Part& part : operation.parts()) {
      servers.push_back(part.server());
    }
  }
  std::unique_ptr<Operation> ended = table_.close(operation.number());
  if (!ended->failed_here()) {
    environment_.world().finish(ended->handle(), std::move(status));
  }
  keep_if_needed(std::move(ended));
  // What it held of the windows is free without a word from the servers.
  for (const std::uint32_t server : servers) {
    sender_.send_on(server);
  }
  say_goodbye_if_done();
}

// Nothing of it is sent, asked or counted any more.
void Operations::close(Operation& operation, const Status& status) {
  // As a rule all of it has left, or there would be no results; but that a server has what it answers is its word.
  detach(operation);
  if (!status.ok()) {
    for (const Part& part : operation.parts()) {
      frames_.send(part.server(), {.type = Type::drop, .operation = operation.number()});
    }
  } else if (operation.gathers() ? !operation.transfer().goes_through_home() : !operation.is_small()) {
    // The home keeps what others may still fail. In a new epoch any server may need to know that this rank has its
    // result.
    for (const Part& part : operation.parts()) {
      if (part.server() == operation.home() || operation.is_reopened()) {
        frames_.drop_soon(part.server(), operation.number());
      }
    }
  }
  for (Part& part : operation.parts()) {
    sender_.answered_all(part);
  }
  progress_.forget(operation);
  transfers_.end(operation);
  if (operation.is_measured()) {
    window_.end_measuring();
  }
  submissions_.discount(operation);
}

// The others may lack its result, and hear that it has failed.
void Operations::keep_if_needed(std::unique_ptr<Operation> operation) {
  const bool all_have_it = operation->failure().ok() && operation->all_settled();
  if (all_have_it || lost_ranks_.job_has_ended() || goodbye_.is_said() || lost_ranks_.concern(operation->group())) {
    return;
  }
  operation->finish();
  table_.keep_finished(std::move(operation));
}

// What a worker says of an operation it begins with its name, and so will this one.
void Operations::fail(std::uint64_t handle, Status why) {
  Operation* operation = table_.find_open(handle);
  if (operation == nullptr || !operation->is_undecided()) {
    return;
  }
  const std::string said_already = std::string(name_of(operation->submission().collective)) + " ";
  if (why.message.starts_with(said_already)) {
    why.message.erase(0, said_already.size());
  }
  progress_.ask_home_to_fail(*operation, std::move(why));
}

void Operations::give_up(std::uint64_t number, const Status& why) {
  progress_.ask_home_to_fail(*table_.find(number), why);
}

void Operations::end_needing(std::uint32_t rank, const Status& why) {
  const auto concerned = [rank](const Operation& operation) { return operation.group().needs(rank); };
  for (const std::uint64_t number : table_.open_where(concerned)) {
    end(*table_.find(number), why);
  }
  forget_finished(table_.finished_where(concerned), &why);
}

void Operations::end_all(const Status& why) {
  for (const std::uint64_t number : table_.open_where([](const Operation&) { return true; })) {
    end(*table_.find(number), why);
  }
  forget_finished();
}

void Operations::forget_finished() {
  forget_finished(table_.finished_where([](const Operation&) { return true; }), nullptr);
}

// Without waiting for members that may need them. `why`: this rank has left if there is nothing else.
void Operations::forget_finished(const std::vector<std::uint64_t>& numbers, const Status* why) {
  for (const std::uint64_t number : numbers) {
    const Operation* operation = table_.find_finished(number);
    if (operation == nullptr) {
      continue;  // forgotten with the goodbye that the one before allowed
    }
    if (operation->is_reopened() && operation->failure().ok() && !lost_ranks_.job_has_ended()) {
      tell_those_who_lack(*operation, why);
    }
    forget(number);
  }
}

// Members that lack its result would wait in vain.
void Operations::tell_those_who_lack(const Operation& operation, const Status* why) {
  const std::string name = "'" + operation.name() + "'";
  const Status status = why != nullptr
                            ? Status::error(why->code, name + ": " + why->message, why->rank)
                            : Status::error(Code::peer_left,
                                            name + " had ended on " + environment_.own_name() +
                                                ", which has left, when a server was lost before others had its result",
                                            environment_.own_rank());
  for (const Part& part : operation.parts()) {
    frames_.send(part.server(), {.type = Type::fail, .operation = operation.number()},
                 wire::encode(wire::Failure{status}));
    frames_.send(part.server(), {.type = Type::drop, .operation = operation.number()});
  }
}

void Operations::forget(std::uint64_t number) {
  const std::unique_ptr<Operation> operation = table_.forget_finished(number);
  detach(*operation);
  for (Part& part : operation->parts()) {
    sender_.answered_all(part);
  }
  say_goodbye_if_done();
}

// To look for frames takes the longer the more is on its way.
void Operations::detach(const Operation& operation) const {
  if (operation.unsent() > 0) {
    environment_.world().detach(operation.number());
  }
}

void Operations::leave() {
  goodbye_.begin();
  frames_.acknowledge(environment_.now());
  say_goodbye_if_done();
}

void Operations::say_goodbye_if_done() {
  if (!goodbye_.is_leaving() || goodbye_.is_said() || !table_.nothing_is_open() || !submissions_.gates().empty()) {
    return;
  }
  // Others may need it to end theirs, if a server is lost now.
  if (table_.others_need_some()) {
    if (goodbye_.wait_for_others()) {
      frames_.acknowledge(environment_.now());
    }
    return;
  }
  goodbye_.begin_saying();
  forget_finished();
  goodbye_.say();
}

// --- A new epoch ---
//
// It is a new beginning for everything that has no answer, and the worker holds all that is needed for it:
//   * the arrays of operations whose handles are open: what was answered is a result there, the rest a contribution;
//   * of operations whose handles are done, what was kept (retained_results.h).

std::vector<std::uint64_t> Operations::suspend() {
  progress_.begin_epoch();
  const auto all = [](const Operation&) { return true; };
  std::vector<std::uint64_t> numbers = table_.open_where(all);
  const std::vector<std::uint64_t> finished = table_.finished_where(all);
  numbers.insert(numbers.end(), finished.begin(), finished.end());
  std::sort(numbers.begin(), numbers.end());
  for (const std::uint64_t number : numbers) {
    // Frames that are still on their way to the network need its arrays no more.
    detach(*table_.find_any(number));
    table_.find_any(number)->suspend();
  }
  return numbers;
}

void Operations::close_server(std::uint32_t server) {
  sender_.close(server);
  progress_.forget_server(server);
}

void Operations::reopen(const std::vector<std::uint64_t>& numbers) {
  transfers_.begin_epoch();
  for (const std::uint64_t number : numbers) {
    Operation& operation = *table_.find_any(number);
    operation.begin_again();
    transfers_.note_reopened(operation);
    sender_.plan(operation);
    sender_.open(operation, true);
    if (!operation.is_finished()) {
      progress_.restart(operation);
    }
  }
}

void Operations::check_invariants() const {
  constexpr std::size_t on_average = 2;
  if (++unchecked_ * on_average < table_.open_count() + table_.finished_count()) {
    return;
  }
  unchecked_ = 0;
  submissions_.check_invariants();
  table_.check_invariants();
  sender_.check_invariants();
  transfers_.check_invariants();
  window_.check_invariants();
  progress_.check_invariants();
  std::size_t measured = 0;
  table_.visit_open([&](const Operation& operation) { measured += operation.is_measured() ? 1 : 0; });
  SHOAL_INVARIANT(measured == window_.measured());
  SHOAL_INVARIANT(!goodbye_.is_said() || table_.finished_count() == 0);
}

}  // namespace shoal::worker
