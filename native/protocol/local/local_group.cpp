#include "protocol/local/local_group.h"

#include <atomic>
#include <stdexcept>
#include <utility>

#include "base/invariant.h"
#include "protocol/keys.h"
#include "protocol/local/crossing.h"

namespace shoal::local {

LocalGroup::LocalGroup(const GroupMemory& memory, const JobConfig& config, std::vector<std::uint32_t> members,
                       std::uint32_t rank, bool has_other_nodes, World& world)
    : memory_(memory),
      config_(config),
      members_(config_, std::move(members)),
      own_(members_.place_of(rank).value()),
      has_other_nodes_(has_other_nodes),
      world_(world),
      outbox_(memory, own_, world),
      arrays_(Execution::most_kept),
      calls_(memory, members_, own_, has_other_nodes, outbox_, world),
      execution_(memory, members_, own_, has_other_nodes, arrays_, outbox_, world),
      watch_(members_, own_, has_other_nodes),
      failures_(members_, own_, has_other_nodes, calls_, watch_, outbox_, world),
      rooms_(members_, own_, calls_, execution_, failures_, outbox_),
      joined_(memory, members_, own_, calls_, outbox_, world) {
  for (std::uint32_t other = 0; other < members_.size(); ++other) {
    readers_.emplace_back(memory, own_, other, world);
  }
  memory_.words(own_).here.store(1);
}

// --- Steps ---

bool LocalGroup::step() {
  if (const std::optional<RecordKind> said = outbox_.write_next()) {
    ring_others();
    // The leader may have to answer, also if it has called nothing.
    if (*said == RecordKind::leave || *said == RecordKind::overdue) {
      world_.ring(0, true);
    }
    return true;
  }
  // First what others say: they may have ended what is called here now. What follows in the same step finds nothing
  // unread: whoever begins with an operation has read all that the leader had said when the last call was read.
  if (read_next() || write_next_call() || note_who_has_left() || begin_next() || note_advanced() ||
      decide_next_failure() || check_time() || say_goodbye_if_done()) {
    return true;
  }
  ++round_;
  return false;
}

// Results do not hold up what others wait for.
bool LocalGroup::work() {
  if (!broken_.ok() || !execution_.step()) {
    return false;
  }
  watch_.note_flowed(now_);
  note_advanced();
  return true;
}

void LocalGroup::ring_others() {
  for (std::uint32_t place = 0; place < members_.size(); ++place) {
    if (place != own_) {
      world_.ring(place, false);
    }
  }
}

// --- This rank's calls ---

void LocalGroup::call(Submission submission) {
  if (!broken_.ok()) {
    return world_.finish(submission.handle, broken_);
  }
  if (submission.told) {
    calls_.move_join(calls_.group(submission.group).id, now_);
  }
  if (!submission.awaits_input || !calls_.hold(submission, now_)) {
    submission.awaits_input = false;
    open(std::move(submission), false);
  }
}

void LocalGroup::input_ready(std::uint64_t handle, const std::string& problem) {
  std::optional<Submission> submission = calls_.release(handle, problem);
  if (!submission) {
    return;
  }
  if (!broken_.ok()) {
    return world_.finish(handle, broken_);
  }
  open(std::move(*submission), true);
}

void LocalGroup::open(Submission&& submission, bool was_held) {
  watch_.begin_call(submission, now_);
  calls_.call(std::move(submission), now_, was_held);
}

bool LocalGroup::write_next_call() {
  Operation* const written = calls_.write_next(round_);
  if (written == nullptr) {
    return false;
  }
  Operation& operation = *written;
  if (operation.opening.failed) {
    ring_others();
  } else if (joined_.anybody()) {
    joined_.ring(operation.group->id);
  }
  for (std::uint32_t place = 0; place < members_.size(); ++place) {
    if (place != own_ && operation.calls.opened(place)) {
      judge(operation, place);
    } else if (place != own_ && calls_.has_left(place)) {
      failures_.fail_without(operation, place);
    }
  }
  if (operation.opening.failed) {
    failures_.note_failed_call(operation);
  }
  proceed(operation);
  return true;
}

// --- What others say ---

// From the leader on each time: what it has said is read before what others have called since they heard it.
bool LocalGroup::read_next() {
  for (std::uint32_t place = 0; place < members_.size(); ++place) {
    if (place == own_ || !readers_[place].any()) {
      continue;
    }
    if (const std::optional<Record> record = readers_[place].next()) {
      read(place, *record);
      readers_[place].done();
      return true;
    }
  }
  return false;
}

void LocalGroup::read(std::uint32_t place, const Record& record) {
  if (!broken_.ok()) {
    return;  // it may be about what has ended here, and has been forgotten
  }
  if (!may_say(place, record, has_other_nodes_)) {
    throw std::runtime_error("the node's shared memory is damaged: " + members_.name_of(place) +
                             " says what it has no say in");
  }
  switch (record.kind) {
    case RecordKind::open:
    case RecordKind::open_with_data:
    case RecordKind::open_in_region: {
      Operation& operation = calls_.hear(place, record, now_);
      if (operation.calls.opened(own_)) {
        judge(operation, place);
        proceed(operation);
      } else if (joined_.anybody() && !operation.called && operation.calls.count() == 1) {
        joined_.tell(operation, now_);
      }
      return;
    }
    case RecordKind::join:
    case RecordKind::end_join:
      return joined_.note(place, record.key, record.kind == RecordKind::end_join);
    case RecordKind::admit:
      execution_.read_admission(record.key, record.body);
      return begin_admitted();
    case RecordKind::leave:
      return failures_.note_left(place);
    case RecordKind::broken:
      return fail_all(decoded_status(record.body), false);
    case RecordKind::overdue:
      return failures_.read_overdue(record);
    case RecordKind::ready:
      return rooms_.hear_answer(place, record, now_) ? begin_admitted() : void();
    case RecordKind::part:
    case RecordKind::blocks:
    case RecordKind::done:
    case RecordKind::failed:
    case RecordKind::fail_pending:
    case RecordKind::go_on:
      return read_verdict(record);
    case RecordKind::skip:
      break;
  }
  throw std::runtime_error(
      "a record of an unknown kind in the node's shared memory: install the same version of Shoal");
}

// Of the leader, about one operation.
void LocalGroup::read_verdict(const Record& record) {
  Operation& operation = calls_.at(record.key);
  operation.lateness.note_moved(now_);
  switch (record.kind) {
    case RecordKind::part:
      return execution_.read_part(operation, record.body);
    case RecordKind::blocks:
      execution_.read_blocks(operation, record.body);
      return rooms_.answer(operation);
    case RecordKind::done:
      return hear_verdict(operation, {}, record.body, record.data);
    case RecordKind::fail_pending:
      operation.fail_pending = true;
      return;
    case RecordKind::go_on:
      operation.fail_pending = false;
      if (operation.calls.count() == 0 && !operation.called) {
        return calls_.erase(operation.key);  // over here, or not begun
      }
      return proceed(operation);
    default: {
      const Status why = decoded_status(record.body);
      if (!record.data.empty()) {
        failures_.tell_worker(operation, record.data, why);
      }
      return hear_verdict(operation, why, {}, {});
    }
  }
}

// In the memory of the whole node, that is: whoever has said so there has left this group too, which it may not even
// know.
bool LocalGroup::note_who_has_left() {
  if (!memory_.is_area()) {
    return false;
  }
  for (std::uint32_t place = 0; place < members_.size() && broken_.ok(); ++place) {
    if (place != own_ && !calls_.has_left(place) && memory_.has_left(place)) {
      if (!readers_[place].any()) {  // what it has called before it left comes first
        failures_.note_left(place);
      }
      return true;
    }
  }
  return false;
}

// --- From the last call to the first chunk ---

void LocalGroup::judge(Operation& operation, std::uint32_t place) {
  if (!operation.assembling()) {
    return;
  }
  if (const std::optional<Status> why = calls_.objection(operation, place)) {
    failures_.fail(operation, *why);
    // Ranks that called before do not know yet.
    if (operation.written_in == round_) {
      ring_others();
    }
  }
}

void LocalGroup::proceed(Operation& operation) {
  failures_.settle_dispute(operation);
  if (!operation.calls.all() || !operation.assembling() || operation.internode_state.disputed()) {
    return calls_.forget_if_done(operation);
  }
  complete_.push_back(operation.key);
}

bool LocalGroup::begin_next() {
  if (complete_.empty()) {
    return false;
  }
  Operation* const operation = calls_.find(complete_.front());
  complete_.pop_front();
  if (operation != nullptr && operation->assembling() && !operation->fail_pending) {
    begin(*operation);
  }
  return true;
}

// All have called it.
void LocalGroup::begin(Operation& operation) {
  operation.state = Operation::State::complete;
  const bool stays = calls_.stays(operation.opening.collective);
  const bool small = stays && operation.calls.all_have_data();
  const bool is_firsts = stays && is_first() && (has_other_nodes_ || !small);
  if (!has_other_nodes_ && operation.is_open()) {
    world_.all_called(operation.submission.handle);
  }
  // Whoever has called last sees that all have, and tells the others before it does its own part. Where the leader
  // goes on alone, or says more, they wait for that.
  if (operation.written_in == round_ && !is_firsts) {
    ring_others();
  }
  if (!stays) {
    calls_.close(operation);
    operation.submission.occurrence = operation.opening.occurrence;
    operation.submission.told = false;  // the worker counts what brings its number nowhere
    world_.hand_over(std::move(operation.submission));
  } else if (has_other_nodes_ && is_gather(operation.opening.collective)) {
    return is_first() ? execution_.send_up_sizes(operation) : begin_admitted();
  } else if (has_other_nodes_ && is_first() && !rooms_.make(operation)) {
    return;
  } else if (small && has_other_nodes_) {
    if (is_first()) {
      return execution_.send_up_small(operation);
    }
  } else if (small) {
    if (const Status problem = execution_.finish_small(operation); !problem.ok()) {
      return give_up(problem);
    }
    end(operation, {});
  } else {
    if (is_first()) {
      execution_.admit(operation.key);
    }
    return begin_admitted();
  }
  calls_.forget_if_done(operation);
}

// The leader's word may be read before another rank's opening, which says where its arrays lie.
void LocalGroup::begin_admitted() {
  for (std::optional<Hash128> key; broken_.ok() && (key = execution_.next_admitted());) {
    Operation* const operation = calls_.find(*key);
    if (operation == nullptr) {
      throw std::runtime_error("an operation flows that was not called");
    }
    if (operation->assembling()) {
      return;
    }
    if (operation->state != Operation::State::complete) {
      throw std::runtime_error("the node's shared memory is damaged: an operation flows that has ended");
    }
    if (const Status problem = execution_.begin_next_admitted(*operation); !problem.ok()) {
      give_up(problem);
    }
  }
}

// --- The end of one ---

void LocalGroup::chunk_averaged(std::uint64_t handle, Range chunk) {
  if (Operation* const operation = execution_.moving(handle)) {
    operation->lateness.note_moved(now_);
    execution_.chunk_averaged(*operation, chunk);
  }
}

void LocalGroup::averaged(std::uint64_t handle, const Status& status, const Told& told) {
  Operation* const found = execution_.moving(handle);
  if (found == nullptr) {
    return;
  }
  Operation& operation = *found;
  operation.lateness.note_moved(now_);
  operation.internode_state.end_at_network();
  if (!broken_.ok()) {
    execution_.forget(handle);
    if (operation.is_open()) {
      end(operation, broken_);
    }
    return;
  }
  note_advanced();  // before the end is said
  try {
    if (status.ok() && !execution_.hear_sizes(operation, told)) {
      return rooms_.make_for_blocks(operation) ? begin_admitted() : void();
    }
  } catch (const ImpossibleBlocks& error) {
    const std::uint32_t leader = operation.group->internode->leaders.at(error.node);
    return give_up(Status::error(Code::aborted,
                                 "'" + operation.opening.name + "': " + rank_text(leader, config_) + " " +
                                     error.what() + "; install the same version of Shoal on all nodes",
                                 static_cast<std::int32_t>(leader)));
  } catch (const std::runtime_error& error) {
    return give_up(error);
  }
  operation.internode_state.decide(status);
  if (!status.ok()) {
    execution_.drop_parts(operation);
    outbox_.say(RecordKind::failed, operation.key, wire::encode(wire::Failure{status}));
  } else if (operation.state == Operation::State::at_network) {
    if (const Status problem = execution_.hand_out_small(operation, told); !problem.ok()) {
      operation.internode_state.decide(problem);  // of this rank alone: the others have had theirs
    }
  }
  end_if_through(operation);
}

bool LocalGroup::note_advanced() {
  bool any = false;
  while (Operation* const operation = broken_.ok() ? execution_.take_advanced() : nullptr) {
    any = true;
    operation->lateness.note_moved(now_);
    end_if_through(*operation);
  }
  return any;
}

void LocalGroup::hear_verdict(Operation& operation, const Status& status, ConstBytes body, ConstBytes result) {
  operation.internode_state.decide(status);
  if (!operation.called) {
    return;
  }
  if (!operation.is_open()) {
    return calls_.forget_if_done(operation);
  }
  if (execution_.flows(operation)) {
    return end_if_through(operation);
  }
  end(operation, status.ok() ? execution_.take_small(operation, body, result) : status);
  calls_.forget_if_done(operation);
}

// With other nodes the last of three: the verdict, the flow, and the delivery of what has arrived. The leader also
// waits until the others have copied what its array has for them.
void LocalGroup::end_if_through(Operation& operation) {
  InternodeState& state = operation.internode_state;
  if (!has_other_nodes_ && state.flowed()) {
    state.decide({});
  }
  const bool flows = execution_.flows(operation);
  if (!state.is_through(flows)) {
    return;
  }
  if (has_other_nodes_ && is_first() && flows && state.verdict()->ok() && state.tell_done()) {
    outbox_.say(RecordKind::done, operation.key);
  }
  if (state.is_returned()) {
    end(operation, *state.verdict());
    calls_.forget_if_done(operation);
  }
}

void LocalGroup::end(Operation& operation, const Status& status) {
  if (status.ok()) {
    execution_.take_own(operation);
  }
  execution_.forget(operation.submission.handle);
  calls_.end(operation, status);
}

LocalGroup::Failed LocalGroup::fail_call(const wire::Call& call, const Status& why) {
  Failed failed;
  Operation* const operation = calls_.find(operation_key(call.group, call.name, call.occurrence));
  if (!broken_.ok() || operation == nullptr || !operation->called) {
    return failed;
  }
  failed.found = operation->is_open();
  if (operation->assembling() && !operation->overdue && !operation->fail_pending) {
    failures_.fail_late(*operation, why);
  } else if (operation->internode_state.is_at_network()) {
    failed.at_network = operation->submission.handle;
  }
  return failed;
}

// --- The end of all ---

void LocalGroup::fail_all(const Status& why, bool network_is_done) {
  if (!broken_.ok()) {
    return;
  }
  broken_ = why;
  detach_arrays();
  for (const auto& [key, operation] : calls_.all()) {
    if (operation->is_open() && (network_is_done || !operation->internode_state.is_at_network())) {
      end(*operation, why);
    }
  }
  calls_.drop_unwritten();
  complete_.clear();
  failures_.drop_pending();
  if (has_other_nodes_ && !network_is_done) {
    world_.fail_job(why);
  }
}

void LocalGroup::give_up(const Status& why) {
  if (broken_.ok()) {
    fail_all(why, false);
    outbox_.say(RecordKind::broken, {}, wire::encode(wire::Failure{why}));
  }
}

void LocalGroup::give_up(const std::exception& error) {
  give_up(Status::error(
      Code::aborted,
      "operations between the ranks of this machine failed on " + members_.name_of(own_) + ": " + error.what(),
      in_job(own_)));
}

// Whoever has seen all openings may go on with an operation that has ended here. Inputs are only read, and with other
// nodes also the outputs of all but the leader.
void LocalGroup::detach_arrays() {
  memory_.words(own_).withdrawn.store(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything that the program writes
  if (has_other_nodes_ && !is_first()) {
    return;
  }
  calls_.detach_arrays();
}

// What it waits for now may be another rank's word, so it is woken as if an operation were open.
void LocalGroup::leave() {
  if (!std::exchange(leaving_, true)) {
    memory_.words(own_).open.fetch_add(1);
  }
}

bool LocalGroup::say_goodbye_if_done() {
  if (!leaving_ || is_empty_ || calls_.open() > 0 || !calls_.all_written()) {
    return false;
  }
  if (is_first() && broken_.ok() && failures_.tell_alone(own_)) {
    return true;
  }
  const bool has_untold = broken_.ok() && failures_.any_untold();
  if (!std::exchange(said_goodbye_, true)) {
    memory_.words(own_).left.store(1);
    outbox_.say(RecordKind::leave, {});
    return true;
  }
  // Where the mailbox is full, the others do not know yet; when all is lost, one may be dead who has not read.
  if (has_untold || (!outbox_.empty() && broken_.ok())) {
    return false;
  }
  is_empty_ = true;
  memory_.words(own_).open.fetch_sub(1);
  world_.empty();
  return true;
}

void LocalGroup::note_gone(std::uint32_t rank) {
  if (const std::optional<std::uint32_t> place = members_.place_of(rank)) {
    outbox_.forget_reader(*place);
  }
}

// --- Time ---

bool LocalGroup::check_time() {
  if (calls_.gates().deadline() <= now_) {
    for (const std::uint64_t handle : calls_.take_late(now_)) {
      input_ready(handle, input_is_late);
    }
    return true;
  }
  if (watch_.deadline() > now_) {
    return false;
  }
  const ProgressWatch::Findings findings = watch_.look(calls_, execution_, now_);
  if (!broken_.ok()) {
    return true;  // what is open here waits for the worker alone
  }
  for (Operation* const operation : findings.timed_out) {
    const Status why = watch_.timed_out(*operation, execution_, now_);
    if (!operation->assembling() || operation->overdue || operation->fail_pending) {
      give_up(why);
      return true;
    }
    failures_.fail_late(*operation, why);
  }
  if (findings.warning) {
    world_.warn(*findings.warning);
  }
  return true;
}

bool LocalGroup::decide_next_failure() {
  if (!failures_.can_decide()) {
    return false;
  }
  if (Operation* const goes_on = failures_.decide_next()) {
    proceed(*goes_on);
  }
  return true;
}

void LocalGroup::check_invariants() const {
  outbox_.check_invariants();
  joined_.check_invariants();
  calls_.check_invariants();
  execution_.check_invariants();
  failures_.check_invariants();
  for (const auto& [key, operation] : calls_.all()) {
    const bool moves =
        operation->state == Operation::State::flowing || operation->state == Operation::State::at_network;
    SHOAL_INVARIANT(!moves || execution_.moving(operation->submission.handle) == operation.get());
    SHOAL_INVARIANT(!operation->is_open() || broken_.ok() || operation->internode_state.is_at_network());
  }
  SHOAL_INVARIANT(!is_empty_ || calls_.open() == 0);
}

}  // namespace shoal::local
