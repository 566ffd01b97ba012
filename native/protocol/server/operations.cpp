// The life of an operation on a server: docs/protocol/lifecycle.md.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/limits.h"
#include "protocol/agreement.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/server/impl.h"

namespace shoal {

using server::Contribution;
using server::Group;
using server::Member;
using server::Outgoing;
using wire::Header;
using wire::Type;

namespace {

// How long the home waits for the other openings once two disagree, so that the message can name them all.
constexpr Time conflict_wait = second * 3 / 10;

// What a segment of every member takes at the rate of the job, if it is long beside a message there and one back.
constexpr Time long_round = second / 1000;

}  // namespace

Server::Impl::Operation& Server::Impl::find_or_make(const wire::Opening& opening, const Group& group) {
  const auto found = serials_.find(opening.key);
  if (found != serials_.end()) {
    return *operations_.at(found->second);
  }
  auto operation = std::make_unique<Operation>();
  operation->serial = next_serial_++;
  operation->key = opening.key;
  operation->group = &group;
  operation->home = home_of(opening.key, config_) == index_;
  operation->members.resize(group.ranks.size());
  operation->reserved = server::record_bytes(opening) - opening.text.size();
  operation->record = server::record_bytes(group) + group.ranks.size() * operation->reserved;
  table_bytes_ += operation->record;
  Operation& made = *operation;
  serials_.emplace(made.key, made.serial);
  operations_.emplace(made.serial, std::move(operation));
  return made;
}

void Server::Impl::opened(Operation& operation, std::size_t index) {
  const wire::Opening& opening = operation.members[index].opening;
  if (operation.state == Operation::State::failed) {
    operation.members[index].inline_data = Contribution{};
    if (opening.finished) {
      release_finished(operation);
      remove_if_done(operation);
    } else if (operation.tells_failure()) {
      tell_failure(operation, index);
    }
    return;
  }
  if (opening.code != Code::ok) {
    fail(operation, Status::error(opening.code, opening.text, opening.rank));
    return;
  }
  if (opening.failed) {
    const std::uint32_t rank = operation.group->ranks[index];
    fail(operation, failed_before(opening, rank, config_));
    return;
  }
  // Where all have what they get, nobody needs anyone.
  const bool needs_all = operation.home && !all_complete(operation);
  for (std::size_t i = 0; needs_all && i < operation.members.size(); ++i) {
    const std::uint32_t rank = operation.group->ranks[i];
    if (!operation.members[i].opened && worker(rank).absence != Code::ok) {
      fail(operation, absence_status(operation, rank));
      return;
    }
  }
  // Any other opening will do: had they differed among themselves, the conflict would be known.
  const auto other = std::find_if(operation.members.begin(), operation.members.end(), [&opening](const Member& member) {
    return member.opened && &member.opening != &opening;
  });
  std::string what;
  const bool conflict = other != operation.members.end() && !agree(other->opening, opening, what);
  if (conflict && !operation.conflict && operation.home) {
    set_alarm(operation, now_ + conflict_wait);
  }
  operation.conflict |= conflict;
  if (operation.opened < operation.members.size()) {
    return;
  }
  if (!operation.conflict) {
    admit(operation);
  } else if (operation.home) {
    alarm(operation);
  }
}

void Server::Impl::admit(Operation& operation) {
  set_alarm(operation, never);
  operation.state = Operation::State::flowing;
  const wire::Opening& attributes = operation.attributes();
  const bool exchanges = is_gather(attributes.collective) || takes_ring(attributes);
  if (!exchanges && attributes.bytes <= config_.small && all_complete(operation)) {
    settle(operation);
    return;
  }
  begin_receipt(operation);
  if (exchanges) {
    exchange(operation);
    return;
  }
  operation.shard = shard_for(attributes);
  operation.segment = config_.segment_for(window_, attributes.bytes, operation.shard.size());
  if (has_results(operation)) {
    resume(operation);
    return;
  }
  operation.segments = std::max<std::uint64_t>(1, (operation.shard.size() + operation.segment - 1) / operation.segment);
  if (operation.shard.empty()) {
    send_results(operation, 0, Segment{operation.shard, {}, 0});
    return;
  }
  std::vector<std::size_t> inlined;
  bool owed = false;
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    Member& member = operation.members[i];
    if (!operation.is_contributor(i)) {
      member.inline_data = Contribution{};
      continue;
    }
    member.next = member.opening.inline_bytes > 0 ? 1 : 0;
    if (member.opening.inline_bytes > 0) {
      inlined.push_back(i);
    }
    owed |= member.next < operation.segments;
  }
  if (owed && inlined.size() == operation.members.size() && first_result_admits(operation)) {
    untold_.push_back(operation.serial);
  } else if (owed) {
    tell_untold();
    tell_admitted(operation);
  }
  // The last of them may end the operation.
  for (std::size_t i : inlined) {
    add_contribution(operation, 0, i, std::move(operation.members[i].inline_data));
  }
}

// Where every server is in a worker, its port is a worker's, and what all send at once on an ADMIT meets there: each
// hears it from the same server first. Results come one after the other. They come later too, and that costs more than
// it brings where a round of segments is short. docs/decisions/order-of-sends.md
bool Server::Impl::first_result_admits(const Operation& operation) const {
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    if (config_.weights[server] > 0 && config_.server_ranks[server] < 0) {
      return false;
    }
  }
  const std::uint64_t round = operation.members.size() * operation.segment;
  const bool takes_long = static_cast<double>(round) * second >= static_cast<double>(config_.rate) * long_round;
  return operation.members.size() > 2 && config_.rate > 0 && takes_long;
}

// Those that wait for their first result to say it, before another operation is admitted: nobody is out of turn.
void Server::Impl::tell_untold() {
  for (std::uint64_t serial : std::exchange(untold_, {})) {
    tell_admitted(*operations_.at(serial));
  }
}

// Whoever owes nothing more hears nothing.
void Server::Impl::tell_admitted(const Operation& operation) {
  // Rotated like the results: what the members then send does not all meet at one server.
  for (std::size_t turn = 0; turn < operation.members.size(); ++turn) {
    const std::size_t i = (index_ + turn) % operation.members.size();
    const Member& member = operation.members[i];
    if (operation.is_contributor(i) && member.next < operation.segments) {
      send(operation.group->ranks[i], {.type = Type::admit, .operation = member.number});
    }
  }
}

bool Server::Impl::takes_ring(const wire::Opening& opening) const {
  return shoal::takes_ring(config_, opening.collective, opening.bytes);
}

void Server::Impl::add_contribution(Operation& operation, std::uint64_t number, std::size_t member,
                                    Contribution contribution) {
  Segment& segment = operation.filling[number];
  if (segment.arrived == 0) {
    segment.range = operation.segment_range(number);
    segment.contributions.resize(operation.members.size());
  }
  segment.contributions[member] = std::move(contribution);
  ++segment.arrived;
  if (segment.arrived == operation.contributors(number)) {
    start_sum(operation, number);
  }
}

void Server::Impl::start_sum(Operation& operation, std::uint64_t number) {
  Segment segment = std::move(operation.filling.at(number));
  operation.filling.erase(number);
  const wire::Opening& attributes = operation.attributes();
  if (operation.contributors(number) == 1) {
    finish_segment(operation, number, std::move(segment));
    return;
  }
  Sum sum;
  // The result takes the place of the first contribution.
  Contribution& first = segment.contributions.front();
  sum.destination = first.buffer.data() + (first.data - first.buffer.data());
  for (const Contribution& contribution : segment.contributions) {
    sum.sources.push_back(contribution.data);
  }
  sum.count = segment.range.size() / size_of(attributes.dtype);
  sum.dtype = attributes.dtype;
  sum.op = attributes.op;
  sum.divisor = attributes.divisor > 0 ? attributes.divisor : static_cast<double>(operation.members.size());
  sum.token = next_token_++;
  summing_.emplace(sum.token, Summing{epoch_, operation.serial, operation.group, number, std::move(segment)});
  world_.sum(std::move(sum));
}

void Server::Impl::on_summed(Token token) {
  auto summing = summing_.extract(token);
  Summing& done = summing.mapped();
  if (done.epoch != epoch_) {
    return;
  }
  const auto found = operations_.find(done.serial);
  if (found == operations_.end() || found->second->state == Operation::State::failed) {
    refund(*done.group, done.segment);
    return;
  }
  finish_segment(*found->second, done.number, std::move(done.segment));
}

void Server::Impl::finish_segment(Operation& operation, std::uint64_t number, Segment segment) {
  operation.summed.emplace(number, std::move(segment));
  while (!operation.summed.empty() && operation.summed.begin()->first == operation.next_result) {
    Segment next = std::move(operation.summed.begin()->second);
    operation.summed.erase(operation.summed.begin());
    const bool last = operation.next_result + 1 == operation.segments;
    send_results(operation, operation.next_result++, std::move(next));
    if (last) {
      return;  // and the operation may be gone
    }
  }
}

void Server::Impl::send_results(Operation& operation, std::uint64_t number, Segment segment) {
  const wire::Opening& attributes = operation.attributes();
  const bool last = number + 1 == operation.segments;
  if (number == 0) {
    std::erase(untold_, operation.serial);
  }
  const bool broadcast = attributes.collective == Collective::broadcast;
  const Token token = next_token_++;
  Outgoing& outgoing = outgoing_[token];
  const std::byte* data = nullptr;
  if (!segment.contributions.empty()) {
    const auto holder = std::find_if(segment.contributions.begin(), segment.contributions.end(),
                                     [](const Contribution& one) { return one.data != nullptr; });
    Contribution& result = *holder;
    data = result.data;
    outgoing.buffer = std::move(result.buffer);
  }
  // Servers visit members in an order rotated by their place, so that not all send to the same one first.
  for (std::size_t turn = 0; turn < operation.members.size(); ++turn) {
    const std::size_t i = (index_ + turn) % operation.members.size();
    Member& member = operation.members[i];
    const std::uint32_t rank = operation.group->ranks[i];
    if (!operation.is_answered(i, number)) {
      continue;
    }
    const std::uint32_t spent = segment.contributions.empty() ? 0 : segment.contributions[i].credit;
    expect_receipt(operation.serial, number);
    Header header{.type = Type::result,
                  .flags = last && !operation.resumed ? wire::flag_last : std::uint8_t{0},
                  .dtype = attributes.dtype,
                  .operation = member.number,
                  .offset = segment.range.begin,
                  .credit = spent};
    if (broadcast && i == attributes.root) {
      outgoing.answers_root = true;
      outgoing.root = rank;
      outgoing.answer = header;
      outgoing.serial = operation.serial;
      outgoing.segment = number;
      worker(rank).broadcasting[member.number].push_back(token);
      answer(operation, i, 0);  // its inline data; its credit comes with the answer
      continue;
    }
    answer(operation, i, spent);
    header.credit = give_back(rank, spent);
    header.acknowledged = settled_segments(operation, i);
    const Range part = operation.lacks(i, number) ? intersection(segment.range, operation.wanted(i)) : Range{};
    if (part.empty()) {
      if (send(rank, header)) {
        note_sent(rank, operation.serial, number);
      }
      continue;
    }
    header.offset = part.begin;
    if (send(rank, header, {}, {data + (part.begin - segment.range.begin), part.size()}, token)) {
      ++outgoing.unsent;
      note_sent(rank, operation.serial, number);
    }
  }
  const std::uint64_t serial = operation.serial;
  if (last) {
    end_flow(operation);
    end_receipt(serial);
  }
  if (outgoing.unsent == 0) {
    end_outgoing(token);
  }
}

void Server::Impl::end_flow(Operation& operation) {
  // The home of an operation that is cut into shards is kept until all are done with it: a member may yet report that
  // it failed.
  if (operation.home && operation.attributes().bytes > config_.small) {
    operation.state = Operation::State::closing;
    release_finished(operation);
    remove_if_done(operation);
  } else {
    remove(operation);
  }
}

void Server::Impl::end_outgoing(Token token) {
  const auto ended = outgoing_.find(token);
  if (!ended->second.answers_root) {
    outgoing_.erase(ended);
    return;
  }
  WorkerState& root = worker(ended->second.root);
  const auto broadcast = root.broadcasting.find(ended->second.answer.operation);
  std::deque<Token>& unanswered = broadcast->second;
  while (!unanswered.empty() && outgoing_.at(unanswered.front()).unsent == 0) {
    auto done = outgoing_.extract(unanswered.front());
    unanswered.pop_front();
    Header& answer = done.mapped().answer;
    root.outstanding -= answer.credit;
    answer.credit = give_back(done.mapped().root, answer.credit);
    if (send(done.mapped().root, answer)) {
      note_sent(done.mapped().root, done.mapped().serial, done.mapped().segment);
    }
  }
  if (unanswered.empty()) {
    root.broadcasting.erase(broadcast);
  }
}

void Server::Impl::on_sent(Token sent) {
  --worker(static_cast<std::uint32_t>(sent % limits::world_size)).unwritten;
  const Token token = sent / limits::world_size;
  const auto found = outgoing_.find(token);
  if (found != outgoing_.end() && --found->second.unsent == 0) {
    end_outgoing(token);
  }
}

void Server::Impl::exchange(Operation& operation) {
  const std::size_t size = operation.members.size();
  const bool gather = operation.attributes().collective == Collective::all_gather;
  std::uint64_t total = 0;
  bool inlined = true;
  for (const Member& member : operation.members) {
    total += member.opening.bytes;
    inlined = inlined && member.inlined;
  }
  // Where some have heard its number in an epoch before, the others hear the same.
  const auto known = std::find_if(operation.members.begin(), operation.members.end(),
                                  [](const Member& member) { return member.opening.exchange != 0; });
  const bool has_number = known != operation.members.end();
  inlined = inlined && total <= config_.small && !has_number;

  wire::Sizes sizes;
  // Numbers of different servers never meet.
  sizes.exchange =
      has_number ? known->opening.exchange : (static_cast<std::uint64_t>(index_) + 1) << 40 | next_exchange_++;
  std::vector<std::uint64_t> taken(size, 0);  // bytes of each input that went to the members before
  for (std::size_t to = 0; to < size; ++to) {
    sizes.blocks.clear();
    for (const Member& from : operation.members) {
      if (takes_ring(from.opening)) {
        break;  // its sizes follow from the operation's
      }
      sizes.blocks.push_back(gather ? from.opening.bytes : static_cast<std::uint64_t>(from.opening.splits[to]));
    }
    const std::uint32_t rank = operation.group->ranks[to];
    const std::uint64_t number = operation.members[to].number;
    answer(operation, to, 0);
    const bool lacks = !is_complete(operation.members[to]);
    if (lacks) {
      expect_receipt(operation.serial, 0);
      const Header header{
          .type = Type::sizes, .flags = inlined ? wire::flag_inline : std::uint8_t{0}, .operation = number};
      if (send(rank, header, wire::encode(sizes))) {
        note_sent(rank, operation.serial, 0);
      }
    }
    if (!inlined) {
      continue;
    }
    const auto bytes = std::accumulate(sizes.blocks.begin(), sizes.blocks.end(), std::size_t{0});
    Buffer buffer = bytes > 0 ? pool_.take(bytes) : Buffer();
    std::byte* at = buffer.data();
    for (std::size_t from = 0; from < size; ++from) {
      const std::size_t block = sizes.blocks[from];
      if (block > 0) {
        std::memcpy(at, operation.members[from].inline_data.data + taken[from], block);
        at += block;
      }
      taken[from] += gather ? 0 : block;
    }
    if (lacks) {
      expect_receipt(operation.serial, 0);
      if (send_block(rank, number, operation.attributes().dtype, std::move(buffer), bytes)) {
        note_sent(rank, operation.serial, 0);
      }
    }
  }
  for (Member& member : operation.members) {
    member.inline_data = Contribution{};
  }
  const std::uint64_t serial = operation.serial;
  if (inlined) {
    remove(operation);
  } else {
    operation.state = Operation::State::exchanging;
    release_finished(operation);
    remove_if_done(operation);
  }
  end_receipt(serial);
}

bool Server::Impl::send_block(std::uint32_t rank, std::uint64_t number, DType dtype, Buffer buffer, std::size_t bytes) {
  const Token token = next_token_++;
  Outgoing& outgoing = outgoing_[token];
  outgoing.buffer = std::move(buffer);
  outgoing.unsent = 1;
  const Header header{.type = Type::result, .flags = wire::flag_last, .dtype = dtype, .operation = number};
  if (!send(rank, header, {}, {outgoing.buffer.data(), bytes}, token)) {
    outgoing_.erase(token);
    return false;
  }
  return true;
}

void Server::Impl::answer(Operation& operation, std::size_t index, std::uint32_t credit) {
  WorkerState& to = worker(operation.group->ranks[index]);
  to.outstanding -= credit;
  to.eager -= std::exchange(operation.members[index].eager, 0);
}

void Server::Impl::fail(Operation& operation, Status why) {
  release(operation);
  set_alarm(operation, never);
  operation.state = Operation::State::failed;
  operation.failure = std::move(why);
  receipts_.erase(operation.serial);
  release_finished(operation);
  for (std::size_t i = 0; operation.tells_failure() && i < operation.members.size(); ++i) {
    if (operation.members[i].opened && !operation.members[i].dropped) {
      tell_failure(operation, i);
    }
  }
  remove_if_done(operation);
}

// Those whose handles were done in an epoch before say nothing more.
void Server::Impl::release_finished(Operation& operation) {
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    const Member& member = operation.members[i];
    if (!member.opened || member.dropped || !(member.opening.finished || member.ended)) {
      continue;
    }
    drop(operation, i);
    if (operation.state == Operation::State::failed && !member.opening.failed) {
      tell_settled(operation.group->ranks[i], member.number, false);
    }
  }
}

void Server::Impl::tell_failure(Operation& operation, std::size_t index) {
  Member& member = operation.members[index];
  member.inline_data = Contribution{};
  answer(operation, index, 0);
  send(operation.group->ranks[index], {.type = Type::fail, .operation = member.number},
       wire::encode(wire::Failure{operation.failure}));
}

void Server::Impl::release(Operation& operation) {
  std::erase(untold_, operation.serial);
  for (auto* segments : {&operation.filling, &operation.summed}) {
    for (auto& [number, segment] : *segments) {
      refund(*operation.group, segment);
    }
    segments->clear();
  }
  for (Member& member : operation.members) {
    member.inline_data = Contribution{};
  }
}

void Server::Impl::refund(const Group& group, Segment& segment) {
  for (std::size_t i = 0; i < segment.contributions.size(); ++i) {
    const std::uint32_t credit = segment.contributions[i].credit;
    worker(group.ranks[i]).outstanding -= credit;
    grant(group.ranks[i], give_back(group.ranks[i], credit));
  }
  segment.contributions.clear();
}

void Server::Impl::drop(Operation& operation, std::size_t index) {
  Member& member = operation.members[index];
  member.dropped = true;
  answer(operation, index, 0);
  worker(operation.group->ranks[index]).operations.erase(member.number);
}

void Server::Impl::remove_if_done(Operation& operation) {
  const bool tombstone = operation.home && operation.state == Operation::State::failed;
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    const Member& member = operation.members[i];
    const WorkerState& of = worker(operation.group->ranks[i]);
    const bool may_come = tombstone && !of.left && !of.lost;
    if (member.opened ? !member.dropped : may_come) {
      return;
    }
  }
  remove(operation);
}

void Server::Impl::remove(Operation& operation) {
  set_alarm(operation, never);
  release(operation);
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    if (operation.members[i].opened && !operation.members[i].dropped) {
      drop(operation, i);
    }
  }
  if (operation.state == Operation::State::failed) {
    // One whose link broke may open it again elsewhere: the others must then know of it.
    const bool all_know = std::none_of(operation.group->ranks.begin(), operation.group->ranks.end(),
                                       [this](std::uint32_t rank) { return worker(rank).lost && !worker(rank).left; });
    for (std::size_t i = 0; operation.home && all_know && i < operation.members.size(); ++i) {
      if (operation.members[i].opened) {
        tell_settled(operation.group->ranks[i], operation.members[i].number, false);
      }
    }
  }
  table_bytes_ -= operation.record;
  kept_bytes_ = std::min(kept_bytes_, table_bytes_);
  serials_.erase(operation.key);
  operations_.erase(operation.serial);
}

void Server::Impl::set_alarm(Operation& operation, Time when) {
  if (operation.next_alarm != never) {
    alarms_.erase({operation.next_alarm, operation.serial});
  }
  operation.next_alarm = when;
  if (when != never) {
    alarms_.insert({when, operation.serial});
  }
}

void Server::Impl::alarm(Operation& operation) {
  fail(operation, Status::error(Code::mismatch, server::mismatch_text(operation, config_)));
}

}  // namespace shoal
