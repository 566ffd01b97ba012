// How a room's operations are matched, carried out and ended. How they are called: room_calls.cpp.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/limits.h"
#include "drivers/shm/partial.h"
#include "drivers/shm/room_impl.h"
#include "protocol/agreement.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/progress.h"
#include "reduce/reduce.h"

namespace shoal::shm {

namespace {

bool is_same(const wire::Bytes& a, ConstBytes b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

wire::Opening decoded(ConstBytes body) {
  wire::Opening opening;
  std::size_t inline_offset = 0;
  if (const Status status = wire::decode(body, opening, inline_offset); !status.ok()) {
    throw std::runtime_error(status.message);
  }
  return opening;
}

Status decoded_status(ConstBytes body) {
  wire::Failure failure;
  if (const Status status = wire::decode(body, failure); !status.ok()) {
    throw std::runtime_error(status.message);
  }
  return failure.status;
}

// --- What others say ---

void Room::Impl::read_all() {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) {
      read_mailbox(rank);
    }
  }
}

void Room::Impl::read_mailbox(std::uint32_t rank) {
  while (const std::optional<Record> record = readers_[rank].next()) {
    read(rank, *record);
    readers_[rank].done();
  }
}

void Room::Impl::read(std::uint32_t rank, const Record& record) {
  if (!broken_.ok()) {
    return;  // it may be about what has ended here, and has been forgotten
  }
  switch (record.kind) {
    case Kind::open:
    case Kind::open_with_data:
    case Kind::open_in_arena:
      return read_opening(rank, record);
    case Kind::admit:
      admitted_.push_back(record.key);
      return flow_admitted();
    case Kind::leave:
      left_[rank] = true;
      return fail_those_who_need(rank);
    case Kind::broken:
      return end_all(decoded_status(record.body), false);
    case Kind::part:
    case Kind::done:
    case Kind::failed:
    case Kind::overdue:
    case Kind::withhold:
    case Kind::go_on:
      return hear(record);
    case Kind::skip:
      break;
  }
  throw std::runtime_error(
      "a record of an unknown kind in the node's shared memory: install the same version of Shoal");
}

void Room::Impl::read_opening(std::uint32_t rank, const Record& record) {
  Operation& operation = operation_of(record.key);
  Call& call = operation.calls[rank];
  call.opened = true;
  ++operation.opened;
  operation.moved = now();
  call.has_data = record.kind == Kind::open_with_data;
  if (record.kind != Kind::open_in_arena) {
    call.data.assign(record.data.begin(), record.data.end());
  } else if (record.data.size() == sizeof(Place)) {
    std::memcpy(&call.place.emplace(), record.data.data(), sizeof(Place));
  }
  call.same = operation.called && is_same(operation.body, record.body);
  if (!call.same) {
    call.body.assign(record.body.begin(), record.body.end());
  }
  if (operation.calls[rank_].opened) {
    judge(operation, rank);
    proceed(operation);
  }
}

// --- Whether they agree ---

// This rank's own call has just been written.
void Room::Impl::judge_all(Operation& operation) {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && operation.calls[rank].opened) {
      judge(operation, rank);
    } else if (rank != rank_ && left_[rank] && operation.state == Operation::State::gathering) {
      fail(operation, left_status(operation.opening.name, rank));
    }
  }
  if (operation.opening.failed && has_uplink_) {
    operation.disputed = failed_before(operation.opening, members_[rank_], config_);
    settle_dispute(operation);
  }
  proceed(operation);
}

void Room::Impl::judge(Operation& operation, std::uint32_t rank) {
  Call& call = operation.calls[rank];
  if (call.same || operation.state != Operation::State::gathering) {
    return;
  }
  if (is_same(operation.body, call.body)) {
    call.same = true;
    return;
  }
  const wire::Opening theirs = decoded(call.body);
  std::string what;
  if (theirs.failed) {
    fail(operation, failed_before(theirs, members_[rank], config_));
  } else if (!agree(operation.opening, theirs, what)) {
    // In the order of the group, as servers say it.
    std::vector<wire::Opening> openings(ranks_);
    std::vector<const wire::Opening*> known(ranks_);
    std::vector<std::uint32_t> ranks;
    for (std::size_t i = 0; i < ranks_; ++i) {
      const std::uint32_t member = operation.group->here[i];
      ranks.push_back(members_[member]);
      if (operation.calls[member].opened) {
        openings[i] = operation.calls[member].same ? operation.opening : decoded(operation.calls[member].body);
        known[i] = &openings[i];
      }
    }
    fail(operation, Status::error(Code::mismatch, mismatch_text(known, ranks, config_)));
  } else {
    return;
  }
  // Those that called before do not know yet.
  if (operation.round == rounds_) {
    ring_others();
  }
}

void Room::Impl::proceed(Operation& operation) {
  if (operation.disputed) {
    settle_dispute(operation);
  }
  const bool gathers = operation.state == Operation::State::gathering;
  if (operation.opened < ranks_ || !gathers || operation.disputed) {
    return forget_if_done(Hash128(operation.key));
  }
  complete_.push_back(operation.key);
}

void Room::Impl::begin_complete() {
  while (!complete_.empty()) {
    const std::deque<Hash128> next = std::exchange(complete_, {});
    // Whoever has called last may have done so after the first rank had given up waiting: its word comes first
    // (room_stalls.cpp).
    if (!is_first()) {
      read_mailbox(0);
    }
    for (const Hash128& key : next) {
      Operation* const operation = find(key);
      if (operation != nullptr && operation->state == Operation::State::gathering && !operation->withheld) {
        begin(*operation);
      }
    }
  }
}

// All have called it.
void Room::Impl::begin(Operation& operation) {
  operation.state = Operation::State::complete;
  const bool small = stays(operation.opening.collective) && all_inlined(operation);
  const bool is_firsts = stays(operation.opening.collective) && is_first() && (has_uplink_ || !small);
  // Whoever has called last sees that all have, and tells the others before it does its own part. Where the first rank
  // goes on alone, or says more, they wait for that.
  if (operation.round == rounds_ && !is_firsts) {
    ring_others();
  }
  if (!stays(operation.opening.collective)) {
    operation.state = Operation::State::over;
    desk_.open.fetch_sub(1);
    open_bytes_ -= operation.record;
    ++ended_;
    if (has_uplink_) {
      operation.submission.occurrence = operation.opening.occurrence;
    }
    ask([this, submission = std::move(operation.submission)]() mutable { world_.hand_over(std::move(submission)); });
  } else if (small) {
    if (!has_uplink_) {
      finish_small(operation);
    } else if (is_first()) {
      return average_small(operation);
    }
  } else if (is_first()) {
    say(Kind::admit, operation.key);
    return flow(operation);
  } else {
    flow_admitted();
  }
  forget_if_done(Hash128(operation.key));
}

// The first rank's word may be read before another rank's opening, which says where its arrays lie.
void Room::Impl::flow_admitted() {
  while (!admitted_.empty()) {
    Operation* const operation = find(admitted_.front());
    if (operation == nullptr) {
      throw std::runtime_error("an operation flows that was not called");
    }
    if (operation->state != Operation::State::complete) {
      return;
    }
    admitted_.pop_front();
    flow(*operation);
  }
}

// Whether this rank's input counts.
bool Room::Impl::contributes(const Operation& operation) const {
  const wire::Opening& opening = operation.opening;
  const bool roots_alone = traits_of(opening.collective).contributors == CollectiveTraits::Contributors::root;
  return !roots_alone || operation.group->here.at(opening.root) == rank_;
}

bool Room::Impl::all_inlined(const Operation& operation) const {
  return std::all_of(operation.calls.begin(), operation.calls.end(), [](const Call& call) { return call.has_data; });
}

void Room::Impl::reduce_small(Operation& operation, double divisor, Operator op) {
  const Submission& s = operation.submission;
  if (s.input_bytes == 0) {
    return;
  }
  std::vector<const std::byte*> sources;
  sources.reserve(ranks_);
  for (std::uint32_t rank : operation.group->here) {
    sources.push_back(rank == rank_ ? s.input : operation.calls[rank].data.data());
  }
  reduce(s.output, sources, s.input_bytes / size_of(s.dtype), s.dtype, op, divisor);
}

void Room::Impl::flow(Operation& operation) {
  const Submission& s = operation.submission;
  operation.state = Operation::State::flowing;
  moving_[s.handle] = operation.key;
  Transfer transfer;
  transfer.name = s.handle;
  transfer.input = s.input;
  transfer.output = s.output;
  transfer.bytes = s.input_bytes;
  transfer.dtype = s.dtype;
  transfer.op = s.op;
  transfer.order = operation.group->here;
  transfer.divisor = ranks_;
  if (operation.group->uplink) {
    const Uplink& uplink = *operation.group->uplink;
    const Partial partial = partial_of(s.dtype, s.op, uplink.ranks, uplink.largest);
    transfer.op = partial.op;
    transfer.divisor = partial.divisor;
    transfer.up = true;
    if (transfer.bytes >= uplink.shared_from) {
      transfer.weights = uplink.weights;
    }
    transfer.arrays = arrays_of(operation);
    operation.lent = transfer.arrays.empty() ? nullptr : transfer.arrays.outputs.front();
  } else if (s.collective == Collective::all_reduce) {
    transfer.arrays = arrays_of(operation);
  } else {
    if (!prepare_blocks(operation, transfer.blocks.emplace())) {
      return;
    }
    transfer.output = operation.submission.output;
  }
  const Chunks chunks = flow_.admit(std::move(transfer));
  if (has_uplink_ && is_first()) {
    send_up(operation, chunks);
  }
}

void Room::Impl::flow_on() {
  while (const auto collected = flow_.take_collected()) {
    ask([this, part = *collected] { world_.contributed(part.name, part.range); });
  }
  while (const std::optional<std::uint64_t> handle = flow_.take_finished()) {
    const Hash128 key = moving_.at(*handle);
    Operation& operation = *find(key);
    operation.flowed = true;
    if (has_uplink_) {
      end_if_through(operation);
      continue;
    }
    moving_.erase(*handle);
    end(operation, {});
    forget_if_done(key);
  }
}

// --- The end ---

void Room::Impl::fail(Operation& operation, const Status& why) {
  if (operation.state != Operation::State::gathering) {
    return;
  }
  if (has_uplink_) {
    operation.disputed = operation.disputed.value_or(why);
    settle_dispute(operation);
  } else {
    end(operation, why);
  }
}

void Room::Impl::end(Operation& operation, const Status& status) {
  operation.state = Operation::State::over;
  if (operation.inlined) {
    eager_ -= operation.opening.bytes;
  }
  desk_.open.fetch_sub(1);
  open_bytes_ -= operation.record;
  ++ended_;
  world_.finish(operation.submission.handle, status);
}

void Room::Impl::forget_if_done(const Hash128& key) {
  const Operation& operation = *find(key);
  // Of what has failed here the first rank has yet to say so.
  const bool unsaid = !decides() && operation.opening.failed && !operation.verdict && !left_[0];
  bool all = operation.state == Operation::State::over && !unsaid;
  for (std::uint32_t rank = 0; rank < ranks_ && all; ++rank) {
    all = operation.calls[rank].opened || left_[rank];
  }
  if (all) {
    failed_bytes_ -= operation.opening.failed ? operation.record : 0;
    operations_.erase(key);
  }
}

Status Room::Impl::left_status(const std::string& name, std::uint32_t rank) const {
  return Status::error(Code::peer_left, "'" + name + "' needs " + name_of(rank) + ", which has left the job normally",
                       in_job(rank));
}

void Room::Impl::fail_those_who_need(std::uint32_t rank) {
  std::vector<Hash128> concerned;
  for (const auto& [key, operation] : operations_) {
    if (operation->calls[rank_].opened && !operation->calls[rank].opened) {
      concerned.push_back(key);
    }
  }
  for (const Hash128& key : concerned) {
    Operation& operation = *find(key);
    const Status why = left_status(operation.opening.name, rank);
    if (!decides() && rank == 0 && operation.state != Operation::State::over) {
      end(operation, why);  // who would have said it
    } else {
      fail(operation, why);
    }
    forget_if_done(key);
  }
}

void Room::Impl::say(Kind kind, const Hash128& key, wire::Bytes body, ConstBytes data) {
  unsaid_.push_back({kind, key, std::move(body), wire::Bytes(data.begin(), data.end())});
  write_sayings();
}

void Room::Impl::end_all(const Status& why, bool network_is_done) {
  if (!broken_.ok()) {
    return;
  }
  broken_ = why;
  detach_arrays();
  for (auto& [key, operation] : operations_) {
    if (operation->called && operation->state != Operation::State::over &&
        (network_is_done || !operation->at_network)) {
      end(*operation, why);
    }
  }
  unwritten_.clear();
  complete_.clear();
  doubted_.clear();
  if (network_is_done) {
    moving_.clear();
  }
  if (has_uplink_ && !network_is_done) {
    ask([this, why] { world_.fail_job(why); });
  }
}

// For a reason that was found in here: other ranks hear it from this one. What the network knows, they hear from rank
// 0.
void Room::Impl::give_up(const Status& why) {
  if (broken_.ok()) {
    end_all(why, false);
    say(Kind::broken, {}, wire::encode(wire::Failure{why}));
  }
}

void Room::Impl::say_goodbye_if_done() {
  if (!leaving_ || is_empty_ || desk_.open.load() > 0 || !unwritten_.empty()) {
    return;
  }
  if (!said_goodbye_) {
    said_goodbye_ = true;
    desk_.left.store(1);
    say(Kind::leave, {});
  }
  // Where the mailbox is full, the others do not know yet.
  if (unsaid_.empty()) {
    is_empty_ = true;
    ask([this] { world_.empty(); });
  }
}

Operation& Room::Impl::operation_of(const Hash128& key) {
  std::unique_ptr<Operation>& place = operations_[key];
  if (place == nullptr) {
    place = std::make_unique<Operation>();
    place->key = key;
    place->calls.resize(ranks_);
  }
  return *place;
}

Operation* Room::Impl::find(const Hash128& key) {
  const auto found = operations_.find(key);
  return found == operations_.end() ? nullptr : found->second.get();
}

}  // namespace shoal::shm
