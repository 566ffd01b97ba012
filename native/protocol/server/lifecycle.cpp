#include "protocol/server/lifecycle.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "base/limits.h"
#include "protocol/agreement.h"
#include "protocol/collectives.h"
#include "protocol/joining.h"
#include "protocol/server/missing_ranges.h"
#include "protocol/server/rivals.h"

namespace shoal::server {

using wire::Header;

namespace {

// Of CALLED.
constexpr Token called_token = 1;
static_assert(called_token < Results::first_token);

}  // namespace

Lifecycle::Lifecycle(const Terms& terms, const Epochs& epochs, const Groups& groups, const Absence& absence,
                     Joined& joined, Links& links, Credit& credit, ServerWorld& world, BufferPool& pool)
    : terms_(terms),
      epochs_(epochs),
      absence_(absence),
      joined_(joined),
      links_(links),
      credit_(credit),
      operations_(terms, groups),
      receipts_(terms, links),
      results_(terms, links, credit, receipts_),
      admission_(terms, operations_, links),
      summation_(epochs, operations_, admission_, results_, world),
      transfers_(terms, links, credit, receipts_, results_, pool),
      endings_(terms, operations_, links, credit, receipts_, summation_) {}

// --- What workers say ---

Status Lifecycle::open(const Group& group, std::size_t index, std::uint64_t number, wire::Opening opening,
                       Contribution inline_data, Time now) {
  const std::uint32_t rank = group.ranks[index];
  const bool carried = !epochs_.has_reopened(rank);
  // Inputs that go through the home again count for nothing.
  const std::uint32_t eager = carried && is_gather(opening.collective) ? 0 : opening.inline_bytes;
  if (!credit_.covers_eager(rank, eager)) {
    return refused("inline data of '" + opening.name + "' is beyond the eager limit of " +
                   std::to_string(terms_.config().eager));
  }
  if (!operations_.has_room(opening, group, carried)) {
    return operations_.too_much();
  }
  const Operation* const rival = operations_.rival(opening.key, group);
  if (rival != nullptr && !can_be_rivals(rival->group(), group)) {
    return refused("OPEN of '" + opening.name + "' in another group than the key says");
  }
  Operation& operation = operations_.find_or_make(opening, group);
  if (&operation.group() != &group) {
    return refused("OPEN of '" + opening.name + "' in another group than the key says");
  }
  if (operation.member(index).opened) {
    return refused("opens '" + opening.name + "' twice");
  }
  const bool failed = opening.failed;
  credit_.spend_eager(rank, eager);
  operations_.open(operation, index, number, std::move(opening), std::move(inline_data), eager);
  if (operation.opened() == 1) {
    if (const std::vector<std::size_t>* const joined = joined_.members_of(group)) {
      std::for_each(joined->begin(), joined->end(), [&](std::size_t member) {
        if (!joined_.waits(group, group.ranks[member])) {
          tell_called(operation, member);
        }
      });
    }
  }
  // What was open before there was too little room goes on.
  if (operations_.is_full() && operation.opened() == 1 && !carried && !failed) {
    refuse(operation);
  } else {
    opened(operation, index, now);
  }
  return {};
}

// In the order in which it was called here first.
void Lifecycle::tell_what_was_called(const Group& group, std::size_t index) {
  if (!joined_.begin_telling(group, group.ranks[index])) {
    return;
  }
  std::vector<std::uint64_t> serials =
      operations_.find_all([&group](const Operation& operation) { return &operation.group() == &group; });
  std::sort(serials.begin(), serials.end());
  for (const std::uint64_t serial : serials) {
    tell_called(operations_.at(serial), index);
  }
}

// By the home alone. What has failed is told too: the member counts it among its calls, as the others do. Of what
// others have a result in an epoch before, it has called that before.
void Lifecycle::tell_called(const Operation& operation, std::size_t index) {
  const std::uint32_t rank = operation.rank(index);
  const wire::Opening& called = operation.attributes();
  const bool has_result = called.finished || !called.have.empty() || called.exchange != 0;
  const bool is_known = has_result && !called.failed;
  if (operation.is_home() && !operation.member(index).opened && !links_.has_left(rank) && !is_known &&
      is_told(called)) {
    const std::uint32_t caller = operation.rank(operation.first());
    wire::Bytes told = wire::encode_called(told_of(called, caller, terms_.config()));
    if (links_.send(rank, {.type = wire::Type::called}, std::move(told), {}, called_token)) {
      joined_.note_sent(rank);
    }
  }
}

Status Lifecycle::check_data(std::uint32_t rank, const Header& header) {
  const auto at = operations_.find(rank, header.operation);
  if (!credit_.covers(rank, header.length)) {
    return refused("DATA of " + std::to_string(header.length) + " bytes is beyond the credit of " +
                   std::to_string(credit_.granted(rank)));
  }
  const JobConfig& config = terms_.config();
  if (!at || at->operation->is(State::failed)) {
    // It was on its way when the operation failed, and is thrown away.
    return header.length <= std::max(config.segment, config.small)
               ? Status{}
               : refused("DATA for operation " + std::to_string(header.operation) + ", which is not open");
  }
  const Operation& operation = *at->operation;
  // One of an epoch before may be sent by a member that has its result.
  const Segments& segments = operation.segments();
  if (!operation.is(State::flowing) || (!operation.is_contributor(at->member) && !segments.is_resumed())) {
    return refused("DATA for '" + operation.name() + "', which was not asked for");
  }
  if (header.dtype != operation.attributes().wire_dtype()) {
    return refused(std::string("DATA in ") + name_of(header.dtype) + " for '" + operation.name() + "'");
  }
  const Range owed = segments.owed(at->member);
  if (header.offset != owed.begin || header.length != owed.size() || header.length == 0) {
    return refused("DATA for '" + operation.name() + "' is not the next segment");
  }
  return {};
}

void Lifecycle::contribute(std::uint32_t rank, const Header& header, Buffer payload) {
  const auto at = operations_.find(rank, header.operation);
  const std::uint32_t bytes = header.length;
  if (!at || at->operation->is(State::failed)) {
    payload = Buffer();
    links_.grant(rank, credit_.give_back(rank, bytes));
    return;
  }
  credit_.spend(rank, bytes);
  Contribution contribution{std::move(payload), nullptr, bytes};
  contribution.data = contribution.buffer.data();
  const std::uint64_t number = at->operation->segments().advance(at->member);
  if (summation_.contribute(*at->operation, number, at->member, std::move(contribution))) {
    endings_.end_flow(*at->operation);
  }
}

void Lifecycle::ask_to_fail(std::uint32_t rank, std::uint64_t number, Status why) {
  const auto at = operations_.find(rank, number);
  // If it has ended in the meantime the worker will hear so.
  if (!at || at->operation->is(State::failed)) {
    return;
  }
  // A home is asked, and every server by a member that leaves with a result that others may lack.
  const bool is_asked = at->operation->is_home() || at->operation->member(at->member).has_result();
  if (is_asked && !can_spare(*at->operation, at->member)) {
    endings_.fail(*at->operation, std::move(why));
  }
}

void Lifecycle::drop(std::uint32_t rank, std::uint64_t number, bool well) {
  const auto at = operations_.find(rank, number);
  if (!at) {
    return;  // it ended here before the worker heard that it failed
  }
  Operation& operation = *at->operation;
  const bool goes_on = operation.is(State::assembling) || operation.is(State::flowing);
  if (goes_on && (well || can_spare(operation, at->member))) {
    operation.end(at->member);  // what it lacked was not all that is missing
    return;
  }
  endings_.drop(operation, at->member);
  if (goes_on) {
    // Decided elsewhere: by its home, or by the coordinator, whose word every member hears.
    endings_.fail(operation, {});
  } else {
    endings_.remove_if_done(operation);
  }
}

// --- What becomes of workers ---

// What it contributed stays: the coordinator decides, and the workers drop what cannot be finished.
void Lifecycle::lose(std::uint32_t rank) {
  receipts_.lose(rank);
  const auto concerns = [rank](const Operation& operation) { return operation.group().index_of(rank).has_value(); };
  for (std::uint64_t serial : operations_.find_all(concerns)) {
    Operation* const operation = operations_.find(serial);
    if (operation == nullptr) {
      continue;  // gone with its rival
    }
    const std::size_t index = *operation->group().index_of(rank);
    if (operation->member(index).opened && !operation->member(index).dropped) {
      endings_.drop(*operation, index);
    }
    endings_.remove_if_done(*operation);
  }
}

// What it is a member of and has not opened fails, and what waits for data that it owes; what others open from now on
// fails too.
void Lifecycle::be_absent(std::uint32_t rank) {
  const auto concerns = [rank](const Operation& operation) {
    const std::optional<std::size_t> index = operation.group().index_of(rank);
    return index && needs_again(operation, *index);
  };
  for (std::uint64_t serial : operations_.find_all(concerns)) {
    Operation* const operation = operations_.find(serial);
    if (operation == nullptr) {
      continue;  // gone with its rival
    }
    if (operation->is(State::failed)) {
      endings_.remove_if_done(*operation);
    } else {
      fail_without_absent(*operation);
    }
  }
  settle_what_all_have();
}

// Whether nothing becomes of the operation before the member is heard of again. (One that has not had its result, and
// owes data, cannot have left: if its link is broken, it opens the operation anew in the next epoch.)
bool Lifecycle::needs_again(const Operation& operation, std::size_t index) {
  const Member& member = operation.member(index);
  return !member.opened || (member.has_result() && operation.owes(index));
}

// A home says so. Another server does where members have results from an epoch before: for its home they may be
// complete, and the operation forgotten there.
bool Lifecycle::fail_without_absent(Operation& operation) {
  const bool decides = operation.is_home() || operation.has_results();
  if (!decides || all_complete(operation)) {
    return false;
  }
  for (std::size_t i = 0; i < operation.size(); ++i) {
    if (needs_again(operation, i) && absence_.is_absent(operation.rank(i))) {
      endings_.fail(operation, absence_.status(operation.name(), operation.rank(i)));
      return true;
    }
  }
  return false;
}

void Lifecycle::settle_what_all_have() {
  if (epochs_.number() == 0) {
    return;
  }
  const auto has_reopened = [this](std::uint32_t rank) {
    return links_.has_left(rank) || absence_.is_absent(rank) ||
           (epochs_.is_current(rank) && epochs_.has_reopened(rank) && !links_.is_lost(rank));
  };
  std::vector<std::uint64_t> serials = operations_.find_all([&](const Operation& operation) {
    const std::vector<std::uint32_t>& ranks = operation.group().ranks;
    return operation.is(State::assembling) && all_complete(operation) &&
           std::all_of(ranks.begin(), ranks.end(), has_reopened);
  });
  std::sort(serials.begin(), serials.end());
  for (std::uint64_t serial : serials) {
    settle(*operations_.find(serial));
  }
}

void Lifecycle::begin_epoch() {
  operations_.clear();
  receipts_.begin_epoch();
  results_.begin_epoch();
  admission_.begin_epoch();
  transfers_.begin_epoch(epochs_.number());
  endings_.begin_epoch();
}

void Lifecycle::written(const Links::Written& frame) {
  if (frame.token != called_token) {
    results_.written(frame.token);
    return;
  }
  for (const Group* const group : joined_.note_written(frame.rank)) {
    tell_what_was_called(*group, group->index_of(frame.rank).value());
  }
}

void Lifecycle::summed(Token token) {
  if (Operation* ended = summation_.summed(token)) {
    endings_.end_flow(*ended);
  }
}

// --- Beginnings ---

void Lifecycle::opened(Operation& operation, std::size_t index, Time now) {
  const wire::Opening& opening = operation.member(index).opening;
  if (operation.is(State::failed)) {
    operation.take_inline_data(index);
    if (opening.finished) {
      endings_.drop_finished(operation);
      endings_.remove_if_done(operation);
    } else if (operation.tells_failure()) {
      endings_.tell_failure(operation, index);
    }
    return;
  }
  if (opening.failed) {
    endings_.fail(operation, failed_before(opening, operation.rank(index), terms_.config()));
    return;
  }
  Operation* const rival = operation.is_home() && operation.opened() == 1 ? operations_.rival(operation) : nullptr;
  if (rival != nullptr && endings_.meet(operation, *rival, now)) {
    return;
  }
  if (fail_without_absent(operation)) {
    return;
  }
  // Compared with one other opening: had the others differed among themselves, the conflict would be known.
  const auto other = std::find_if(operation.members().begin(), operation.members().end(),
                                  [&](const Member& member) { return member.opened && &member.opening != &opening; });
  std::string what;
  if (other != operation.members().end() && !agree(other->opening, opening, what)) {
    if (!operation.has_conflict() && operation.is_home()) {
      endings_.set_alarm(operation, now);
    }
    operation.note_conflict();
  }
  if (operation.opened() < operation.size()) {
    return;
  }
  if (!operation.has_conflict()) {
    admit(operation);
  } else if (operation.is_home()) {
    endings_.fail_for_conflict(operation);
  }
}

void Lifecycle::refuse(Operation& operation) {
  Status why = operations_.too_much();
  why.message = "'" + operation.name() + "': " + why.message;
  endings_.fail(operation, std::move(why));
}

void Lifecycle::admit(Operation& operation) {
  const wire::Opening& attributes = operation.attributes();
  const std::uint64_t serial = operation.serial();
  if (terms_.is_transferred(attributes)) {
    receipts_.begin(operation);
    if (transfers_.start(operation)) {
      endings_.remove(operation);
    } else {
      operation.transfer();
      endings_.drop_finished(operation);
      endings_.remove_if_done(operation);
    }
    receipts_.end(serial);
    return;
  }
  if (terms_.is_small(attributes) && all_complete(operation)) {
    settle(operation);
    return;
  }
  receipts_.begin(operation);
  const Range shard = terms_.shard_of(attributes);
  const std::uint32_t segment = terms_.segment_of(attributes, shard, operation.group().senders);
  if (!terms_.is_small(attributes) && operation.has_results()) {
    resume(operation, shard, segment);
    return;
  }
  const std::uint32_t full = terms_.full_segment(operation.group().senders);
  const bool lengthens =
      segment < full && may_lengthen(operation) && JobConfig::fills_segments(full, queue_.bytes() + shard.size());
  operation.flow(Segments(attributes, operation.size(), shard, lengthens ? full : segment), queue_.enter(shard.size()));
  start(operation, lengthens);
}

// Members hear of it before they send anything; one that only receives would not hear of it.
bool Lifecycle::may_lengthen(const Operation& operation) {
  return traits_of(operation.attributes().collective).all_give() &&
         std::none_of(operation.members().begin(), operation.members().end(),
                      [](const Member& member) { return member.opening.inline_bytes > 0; });
}

void Lifecycle::start(Operation& operation, bool full) {
  Segments& segments = operation.segments();
  if (segments.range(0).empty()) {
    summation_.finish(operation, 0, Segment{segments.range(0), {}, 0});
    endings_.end_flow(operation);
    return;
  }
  std::vector<std::size_t> inlined;
  for (std::size_t i = 0; i < operation.size(); ++i) {
    if (!operation.is_contributor(i)) {
      operation.take_inline_data(i);
    } else if (operation.member(i).opening.inline_bytes > 0) {
      segments.advance(i);
      inlined.push_back(i);
    }
  }
  admission_.admit(operation, inlined.size() == operation.size(), full);
  bool ended = false;
  for (std::size_t i : inlined) {
    ended = summation_.contribute(operation, 0, i, operation.take_inline_data(i));
  }
  if (ended) {
    endings_.end_flow(operation);
  }
}

// Asks for what is missing: from one member that has the result, or from all contributors.
void Lifecycle::resume(Operation& operation, Range shard, std::uint32_t segment) {
  if (shard.size() / segment > limits::resumed_segments) {
    endings_.fail(operation, Status::error(Code::limit, "'" + operation.name() + "' is too large to go on at " +
                                                            terms_.name() + " after the loss of a server: " +
                                                            bytes_text(shard.size()) + " there; cut it into several"));
    return;
  }
  const std::vector<MissingRange> missing = missing_ranges(operation, shard);
  const std::uint64_t lacked =
      std::accumulate(missing.begin(), missing.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const MissingRange& one) { return sum + one.range.size(); });
  operation.flow(Segments(operation.attributes(), operation.size(), missing, segment), queue_.enter(lacked));
  operation.discard_inline_data();
  for (std::size_t i = 0; i < operation.size(); ++i) {
    credit_.answer(operation.rank(i), 0, operation.take_eager(i));
  }
  admission_.resume(operation, missing);
  Segments& segments = operation.segments();
  for (std::uint64_t number = 0; number < segments.count(); ++number) {
    if (segments.is_idle(number)) {
      summation_.finish(operation, number, Segment{segments.range(number), {}, 0});
    }
  }
  if (segments.all_answered()) {
    endings_.end_flow(operation);
  } else {
    fail_without_absent(operation);
  }
}

void Lifecycle::settle(Operation& operation) {
  endings_.clear_alarm(operation);
  for (std::size_t i = 0; i < operation.size(); ++i) {
    if (operation.member(i).opened) {
      links_.tell_settled(operation.rank(i), operation.member(i).number, true);
    }
  }
  if (!terms_.is_transferred(operation.attributes())) {
    endings_.remove(operation);
    return;
  }
  // Blocks may still go from worker to worker, and one of them may fail it.
  operation.transfer();
  operation.discard_inline_data();
  endings_.drop_finished(operation);
  endings_.remove_if_done(operation);
}

bool Lifecycle::all_complete(const Operation& operation) const {
  return std::all_of(operation.members().begin(), operation.members().end(),
                     [this](const Member& member) { return !member.opened || terms_.is_complete(member.opening); });
}

// All that it owes has come; or nobody lacks anything, and those who have not opened the operation cannot do so in this
// epoch.
bool Lifecycle::can_spare(const Operation& operation, std::size_t index) const {
  if (!operation.member(index).has_result()) {
    return false;
  }
  if (!operation.is_contributor(index) && !traits_of(operation.attributes().collective).shares_results()) {
    return true;
  }
  if (operation.is(State::flowing)) {
    return !operation.owes(index);
  }
  const std::vector<Member>& members = operation.members();
  const auto opens_no_more = [this](std::uint32_t rank) { return absence_.is_absent(rank) || links_.is_lost(rank); };
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!members[i].opened && !opens_no_more(operation.rank(i))) {
      return false;
    }
  }
  return operation.is(State::assembling) && all_complete(operation);
}

void Lifecycle::check_invariants() const {
  operations_.check_invariants();
  receipts_.check_invariants();
  results_.check_invariants();
  admission_.check_invariants();
  summation_.check_invariants();
  transfers_.check_invariants(epochs_.number());
  endings_.check_invariants();

  std::uint64_t queued = 0;
  operations_.for_each([&](const Operation& operation) { queued += operation.queued(); });
  SHOAL_INVARIANT(queued == queue_.bytes());

  std::vector<std::uint64_t> outstanding(terms_.ranks());
  std::vector<std::uint64_t> eager(terms_.ranks());
  summation_.add_summing(outstanding);
  results_.add_unanswered(outstanding);
  operations_.for_each([&](const Operation& operation) {
    operation.segments().add_credit(operation.group().ranks, outstanding);
    for (std::size_t i = 0; i < operation.size(); ++i) {
      eager[operation.rank(i)] += operation.member(i).eager;
    }
    SHOAL_INVARIANT(!operation.is(State::flowing) || receipts_.has(operation.serial()));
    SHOAL_INVARIANT(!operation.is(State::failed) || !receipts_.has(operation.serial()));
  });
  for (std::uint32_t rank = 0; rank < terms_.ranks(); ++rank) {
    SHOAL_INVARIANT(outstanding[rank] == credit_.outstanding(rank));
    SHOAL_INVARIANT(eager[rank] == credit_.eager(rank));
  }
}

}  // namespace shoal::server
