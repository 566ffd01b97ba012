#include "protocol/local/local_group.h"

#include <cstring>
#include <stdexcept>

#include "base/invariant.h"
#include "protocol/agreement.h"
#include "protocol/keys.h"

namespace shoal::local {

namespace {

// Who on the other nodes waits for an operation that has failed here, as the first rank tells the others.
constexpr std::uint8_t internode_waits = 1;
constexpr std::uint8_t workers_wait = 2;

}  // namespace

LocalGroup::LocalGroup(const GroupMemory& memory, const JobConfig& config, std::vector<std::uint32_t> members,
                       std::uint32_t rank, bool has_other_nodes, World& world)
    : memory_(memory),
      config_(config),
      members_(config_, std::move(members)),
      own_(members_.place_of(rank).value()),
      has_other_nodes_(has_other_nodes),
      world_(world),
      outbox_(memory, own_, world),
      calls_(memory, members_, own_, has_other_nodes, outbox_, world),
      execution_(memory, members_, own_, has_other_nodes, outbox_, world),
      watch_(members_, own_, has_other_nodes),
      left_(members_.size()) {
  for (std::uint32_t other = 0; other < members_.size(); ++other) {
    readers_.emplace_back(memory, own_, other, world);
  }
  memory_.words(own_).here.store(1);
}

// --- Steps ---

bool LocalGroup::step() {
  if (outbox_.write_next()) {
    ring_others();
    return true;
  }
  // First what others say: they may have ended what is called here now. What follows in the same step finds nothing
  // unread: whoever begins with an operation has read all that the first rank had said when the last call was read.
  if (read_next() || write_next_call() || note_who_has_left() || begin_next() || note_advanced() || check_time() ||
      settle_pending() || say_goodbye_if_done()) {
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
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (rank != own_) {
      world_.ring(rank, false);
    }
  }
}

// --- This rank's calls ---

void LocalGroup::call(Submission submission) {
  if (!broken_.ok()) {
    return world_.finish(submission.handle, broken_);
  }
  watch_.begin_call(submission, now_);
  calls_.call(std::move(submission), now_);
}

bool LocalGroup::write_next_call() {
  Operation* const written = calls_.write_next(round_);
  if (written == nullptr) {
    return false;
  }
  Operation& operation = *written;
  if (operation.opening.failed) {
    ring_others();
  }
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (rank != own_ && operation.calls.opened(rank)) {
      judge(operation, rank);
    } else if (rank != own_ && left_[rank]) {
      fail_without(operation, rank);
    }
  }
  if (operation.opening.failed && has_other_nodes_) {
    operation.internode_state.dispute(failed_before(operation.opening, members_.rank_of(own_), config_));
  }
  proceed(operation);
  return true;
}

// --- What others say ---

bool LocalGroup::read_next() {
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (rank == own_) {
      continue;
    }
    if (const std::optional<Record> record = readers_[rank].next()) {
      read(rank, *record);
      readers_[rank].done();
      return true;
    }
  }
  return false;
}

void LocalGroup::read(std::uint32_t rank, const Record& record) {
  if (!broken_.ok()) {
    return;  // it may be about what has ended here, and has been forgotten
  }
  switch (record.kind) {
    case RecordKind::open:
    case RecordKind::open_with_data:
    case RecordKind::open_in_region: {
      Operation& operation = calls_.hear(rank, record, now_);
      if (operation.calls.opened(own_)) {
        judge(operation, rank);
        proceed(operation);
      }
      return;
    }
    case RecordKind::admit:
      execution_.admit(record.key);
      return begin_admitted();
    case RecordKind::leave:
      left_[rank] = true;
      return fail_those_who_need(rank);
    case RecordKind::broken:
      return fail_all(decoded_status(record.body), false);
    case RecordKind::overdue:
      return read_overdue(record);
    case RecordKind::part:
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

// Of the first rank, about one operation.
void LocalGroup::read_verdict(const Record& record) {
  Operation& operation = calls_.at(record.key);
  operation.lateness.note_moved(now_);
  switch (record.kind) {
    case RecordKind::part:
      return execution_.read_part(operation, record.body);
    case RecordKind::done:
      return hear_verdict(operation, {}, record.data);
    case RecordKind::fail_pending:
      operation.fail_pending = true;
      return;
    case RecordKind::go_on:
      operation.fail_pending = false;
      if (operation.calls.count() == 0) {
        return calls_.erase(Hash128(operation.key));  // over here, or not begun
      }
      return proceed(operation);
    default: {
      const Status why = decoded_status(record.body);
      if (!record.data.empty()) {
        tell_worker(operation, record.data, why);
      }
      return hear_verdict(operation, why, {});
    }
  }
}

// On the first rank: another rank's time is out.
void LocalGroup::read_overdue(const Record& record) {
  Operation* const operation = calls_.find(record.key);
  if (!is_first() || operation == nullptr || !operation->gathers() || operation->calls.all() ||
      operation->internode_state.is_network_told()) {
    return;
  }
  const Status why = decoded_status(record.body);
  has_other_nodes_ ? fail_everywhere(*operation, why) : announce_failure(*operation, why);
}

// In the memory of the whole node, that is: whoever has said so there has left this group too, which it may not even
// know.
bool LocalGroup::note_who_has_left() {
  for (std::uint32_t rank = 0; rank < members_.size() && broken_.ok(); ++rank) {
    if (rank != own_ && !left_[rank] && memory_.has_left(rank)) {
      if (!readers_[rank].any()) {  // what it has called before it left comes first
        left_[rank] = true;
        fail_those_who_need(rank);
      }
      return true;
    }
  }
  return false;
}

// --- From the last call to the first chunk ---

void LocalGroup::judge(Operation& operation, std::uint32_t rank) {
  if (!operation.gathers()) {
    return;
  }
  if (const std::optional<Status> why = calls_.objection(operation, rank)) {
    fail(operation, *why);
    // Ranks that called before do not know yet.
    if (operation.written_in == round_) {
      ring_others();
    }
  }
}

void LocalGroup::proceed(Operation& operation) {
  if (operation.internode_state.disputed()) {
    settle_dispute(operation);
  }
  if (!operation.calls.all() || !operation.gathers() || operation.internode_state.disputed()) {
    return forget_if_done(operation);
  }
  complete_.push_back(operation.key);
}

bool LocalGroup::begin_next() {
  if (complete_.empty()) {
    return false;
  }
  Operation* const operation = calls_.find(complete_.front());
  complete_.pop_front();
  if (operation != nullptr && operation->gathers() && !operation->fail_pending) {
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
  // Whoever has called last sees that all have, and tells the others before it does its own part. Where the first rank
  // goes on alone, or says more, they wait for that.
  if (operation.written_in == round_ && !is_firsts) {
    ring_others();
  }
  if (!stays) {
    calls_.close(operation);
    operation.submission.occurrence = operation.opening.occurrence;
    world_.hand_over(std::move(operation.submission));
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
      outbox_.say(RecordKind::admit, operation.key);
      execution_.admit(operation.key);
    }
    return begin_admitted();
  }
  forget_if_done(operation);
}

// The first rank's word may be read before another rank's opening, which says where its arrays lie.
void LocalGroup::begin_admitted() {
  while (!execution_.admitted().empty() && broken_.ok()) {
    Operation* const operation = calls_.find(execution_.admitted().front());
    if (operation == nullptr) {
      throw std::runtime_error("an operation flows that was not called");
    }
    if (operation->state != Operation::State::complete) {
      return;
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

void LocalGroup::averaged(std::uint64_t handle, const Status& status) {
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
  operation.internode_state.decide(status);
  if (!status.ok()) {
    execution_.drop_parts(operation);
    outbox_.say(RecordKind::failed, operation.key, wire::encode(wire::Failure{status}));
  } else if (operation.state == Operation::State::at_network) {
    const Submission& s = operation.submission;
    outbox_.say(RecordKind::done, operation.key, {}, {s.output, s.output_bytes});
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

void LocalGroup::hear_verdict(Operation& operation, const Status& status, ConstBytes result) {
  operation.internode_state.decide(status);
  if (!operation.called) {
    return;
  }
  if (!operation.is_open()) {
    return forget_if_done(operation);
  }
  if (execution_.flows(operation)) {
    return end_if_through(operation);
  }
  if (status.ok() && result.size() != operation.submission.output_bytes) {
    throw std::runtime_error("a result of the wrong size");
  }
  world_.copy(operation.submission.output, result.data(), result.size());
  end(operation, status);
  forget_if_done(operation);
}

// With other nodes the last of three: the verdict, the flow, and the delivery of what has arrived. The first rank also
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
    forget_if_done(operation);
  }
}

void LocalGroup::end(Operation& operation, const Status& status) {
  execution_.forget(operation.submission.handle);
  calls_.close(operation);
  world_.finish(operation.submission.handle, status);
}

void LocalGroup::forget_if_done(const Operation& operation) {
  // Of what has failed here the first rank has yet to say so.
  const bool unsaid = !decides() && operation.opening.failed && !operation.internode_state.verdict() && !left_[0];
  bool all = operation.state == Operation::State::over && !unsaid;
  for (std::uint32_t rank = 0; rank < members_.size() && all; ++rank) {
    all = operation.calls.opened(rank) || left_[rank];
  }
  if (all) {
    calls_.erase(Hash128(operation.key));
  }
}

void LocalGroup::fail(Operation& operation, const Status& why) {
  if (!operation.gathers()) {
    return;
  }
  if (has_other_nodes_) {
    operation.internode_state.dispute(why);
    settle_dispute(operation);
  } else {
    end(operation, why);
  }
}

// Something is wrong with it that other ranks and nodes have to hear: from the first rank, as soon as it knows what it
// is.
void LocalGroup::settle_dispute(Operation& operation) {
  if (!is_first() || operation.internode_state.is_network_told()) {
    return;
  }
  const std::optional<wire::Opening> opening = operation.any_opening();
  if ((opening && !opening->failed) || nobody_else_calls(operation)) {
    fail_everywhere(operation, *operation.internode_state.disputed());
  }
}

bool LocalGroup::nobody_else_calls(const Operation& operation) const {
  const std::vector<std::uint32_t> missing = operation.calls.missing();
  return std::all_of(missing.begin(), missing.end(), [this](std::uint32_t rank) { return left_[rank]; });
}

// On the first rank.
void LocalGroup::fail_everywhere(Operation& operation, const Status& why) {
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
    end(operation, why);
  }
}

// The other nodes may wait for it: for the first rank in what goes up, for every rank in everything else.
void LocalGroup::tell_worker(Operation& operation, ConstBytes waiting, const Status& why) {
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

LocalGroup::Failed LocalGroup::fail_call(const wire::Call& call, const Status& why) {
  Failed failed;
  Operation* const operation = calls_.find(operation_key(call.group, call.name, call.occurrence));
  if (!broken_.ok() || operation == nullptr || !operation->called) {
    return failed;
  }
  failed.found = operation->is_open();
  if (operation->gathers() && !operation->overdue && !operation->fail_pending) {
    fail_gathering(*operation, why);
  } else if (operation->internode_state.is_at_network()) {
    failed.at_network = operation->submission.handle;
  }
  return failed;
}

void LocalGroup::fail_those_who_need(std::uint32_t rank) {
  for (Operation* const operation : calls_.lacking(rank)) {
    fail_without(*operation, rank);
    if (operation->internode_state.disputed()) {
      settle_dispute(*operation);
    }
    forget_if_done(*operation);
  }
}

// The rank has left, and has not called it.
void LocalGroup::fail_without(Operation& operation, std::uint32_t rank) {
  const Status why = members_.left_status(operation.opening.name, rank);
  if (!decides() && rank == 0 && operation.is_open()) {
    end(operation, why);  // who would have said it
  } else {
    fail(operation, why);
  }
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
  pending_.clear();
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
// nodes also the outputs of all but the first rank.
void LocalGroup::detach_arrays() {
  memory_.words(own_).withdrawn.store(1);
  if (has_other_nodes_ && !is_first()) {
    return;
  }
  calls_.detach_arrays();
}

// Of what has failed here before it began the other nodes hear from the worker, once this node's ranks have agreed on
// what it is: somebody who has called it too has to be there for that, and the first rank.
bool LocalGroup::has_untold_failures() const {
  if (!has_other_nodes_ || !broken_.ok() || left_[0]) {
    return false;
  }
  const auto is_untold = [this](const auto& entry) {
    const Operation& operation = *entry.second;
    return operation.called && operation.opening.failed && !operation.internode_state.is_network_told();
  };
  return std::any_of(calls_.all().begin(), calls_.all().end(), is_untold);
}

bool LocalGroup::say_goodbye_if_done() {
  if (!leaving_ || is_empty_ || calls_.open() > 0 || !calls_.all_written() || has_untold_failures()) {
    return false;
  }
  if (!std::exchange(said_goodbye_, true)) {
    memory_.words(own_).left.store(1);
    outbox_.say(RecordKind::leave, {});
    return true;
  }
  // Where the mailbox is full, the others do not know yet; when all is lost, one may be dead who has not read.
  if (!outbox_.empty() && broken_.ok()) {
    return false;
  }
  is_empty_ = true;
  world_.empty();
  return true;
}

// --- Time ---

bool LocalGroup::check_time() {
  if (watch_.deadline() > now_) {
    return false;
  }
  const ProgressWatch::Findings findings = watch_.look(calls_, execution_, now_);
  if (!broken_.ok()) {
    return true;  // what is open here waits for the worker alone
  }
  for (Operation* const operation : findings.timed_out) {
    const Status why = watch_.timed_out(*operation, execution_, now_);
    if (!operation->gathers() || operation->overdue) {
      give_up(why);
      return true;
    }
    fail_gathering(*operation, why);
  }
  if (findings.warning) {
    world_.warn(*findings.warning);
  }
  return true;
}

// Not all ranks of the node have called it, and it cannot be waited for any longer: the first rank decides.
void LocalGroup::fail_gathering(Operation& operation, const Status& why) {
  if (is_first() && has_other_nodes_) {
    fail_everywhere(operation, why);
  } else if (is_first()) {
    announce_failure(operation, why);
  } else {
    operation.overdue = true;
    outbox_.say(RecordKind::overdue, operation.key, wire::encode(wire::Failure{why}));
    watch_.watch_for_verdict(operation);
  }
}

// On the first rank.
void LocalGroup::announce_failure(Operation& operation, const Status& why) {
  if (!std::exchange(operation.fail_pending, true)) {
    outbox_.say(RecordKind::fail_pending, operation.key);
    pending_.emplace_back(operation.key, why);
  }
}

// Once the others can read that it is pending, and all that they have called is read.
bool LocalGroup::settle_pending() {
  if (pending_.empty() || !outbox_.empty()) {
    return false;
  }
  const auto [key, why] = std::move(pending_.front());
  pending_.pop_front();
  Operation* const operation = calls_.find(key);
  if (operation == nullptr) {
    return true;
  }
  operation->fail_pending = false;
  // What has failed meanwhile for what others have called fails so on every rank.
  if (operation->calls.all() || !operation->gathers()) {
    outbox_.say(RecordKind::go_on, key);
    proceed(*operation);
    return true;
  }
  outbox_.say(RecordKind::failed, key, wire::encode(wire::Failure{why}));
  operation->internode_state.decide(why);
  if (operation->is_open()) {
    end(*operation, why);
  }
  return true;
}

void LocalGroup::check_invariants() const {
  outbox_.check_invariants();
  calls_.check_invariants();
  execution_.check_invariants();
  for (const auto& [key, operation] : calls_.all()) {
    const bool moves =
        operation->state == Operation::State::flowing || operation->state == Operation::State::at_network;
    SHOAL_INVARIANT(!moves || execution_.moving(operation->submission.handle) == operation.get());
    SHOAL_INVARIANT(!operation->is_open() || broken_.ok() || operation->internode_state.is_at_network());
  }
  SHOAL_INVARIANT(pending_.empty() || is_first());
  SHOAL_INVARIANT(!is_empty_ || calls_.open() == 0);
}

}  // namespace shoal::local
