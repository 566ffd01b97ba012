// A node's operations: how they are opened, sent, and ended. docs/protocol.md, section 7.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/limits.h"
#include "protocol/agreement.h"
#include "protocol/keys.h"
#include "protocol/node_impl.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

std::uint64_t rows_of(const Submission& submission) {
  return submission.shape.empty() ? 0 : static_cast<std::uint64_t>(submission.shape[0]);
}

}  // namespace

namespace node {

std::optional<std::size_t> Group::index_of(std::uint32_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found - ranks.begin());
}

bool Group::needs(std::uint32_t rank) const { return std::find(needed.begin(), needed.end(), rank) != needed.end(); }

bool Operation::gathers() const { return is_gather(submission.collective); }

bool Operation::contributes() const {
  switch (submission.collective) {
    case Collective::broadcast:
      return group->own == submission.root;
    case Collective::barrier:
    case Collective::none:
      return false;
    default:
      return true;
  }
}

bool Operation::waits_for_others(const JobConfig& config) const {
  const bool broadcasts = submission.collective == Collective::broadcast && contributes();
  return bytes > config.small && (submission.collective == Collective::reduce_scatter || broadcasts);
}

bool Operation::shares_results(const JobConfig& config) const {
  return submission.collective == Collective::all_reduce && bytes > config.small && !config.ring;
}

Cursor Part::next_to_send() const {
  Cursor at = sent;
  while (at.run < runs.size() && (!runs[at.run].sends || at.offset >= runs[at.run].range.end)) {
    ++at.run;
  }
  if (at.run < runs.size()) {
    at.offset = std::max(at.offset, runs[at.run].range.begin);
  }
  return at;
}

Cursor Part::next_to_answer() const {
  Cursor at = answered;
  while (at.run + 1 < runs.size() && at.offset >= runs[at.run].range.end) {
    ++at.run;
  }
  if (at.run < runs.size()) {
    at.offset = std::max(at.offset, runs[at.run].range.begin);
  }
  return at;
}

Range Part::segment_at(const Cursor& cursor) const {
  if (cursor.run >= runs.size()) {
    return {};
  }
  return {cursor.offset, std::min(cursor.offset + segment, runs[cursor.run].range.end)};
}

std::uint64_t Part::segments_sent() const {
  std::uint64_t segments = 0;
  for (std::size_t run = 0; run < runs.size() && run <= sent.run; ++run) {
    const Range& range = runs[run].range;
    const std::uint64_t end = run < sent.run ? range.end : sent.offset;
    segments += (end - range.begin + segment - 1) / segment;
  }
  return segments;
}

std::uint64_t Operation::least_sent() const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Part& part : parts) {
    if (!part.all_sent()) {
      least = std::min(least, part.segments_sent());
    }
  }
  return least;
}

double Operation::step() const {
  double least = 1;
  for (const Part& part : parts) {
    const Range next = part.segment_at(part.next_to_send());
    if (part.leads && !next.empty() && has(next)) {
      least = std::min(least, static_cast<double>(part.bytes_sent()) / static_cast<double>(part.shard.size()));
    }
  }
  return least;
}

bool Operation::in_step(const Part& part) const {
  return !part.keeps_step ||
         static_cast<double>(part.bytes_sent()) <= step() * static_cast<double>(part.shard.size()) + part.head_start;
}

Part& Operation::part_of(std::uint32_t server) {
  return *std::lower_bound(parts.begin(), parts.end(), server,
                           [](const Part& part, std::uint32_t index) { return part.server < index; });
}

bool Operation::done(const JobConfig& config) const {
  const bool waits = waits_for_others(config);
  return !failed_here && std::all_of(parts.begin(), parts.end(),
                                     [waits](const Part& part) { return part.done && (part.settled || !waits); });
}

}  // namespace node

std::uint32_t Node::Impl::make_group(std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> needed,
                                     const std::string& name) {
  auto group = std::make_unique<Group>();
  // Group 0 has the id that every server knows.
  const bool world = groups_.empty();
  const std::uint64_t made = world ? 0 : ++made_[group_id(ranks, name, 0)];
  group->id = group_id(ranks, name, made);
  group->ranks = std::move(ranks);
  group->needed = std::move(needed);
  group->own = group->index_of(rank_).value_or(0);
  groups_.push_back(std::move(group));
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

Status Node::Impl::problem_with(const Submission& submission) const {
  const auto wrong = [](std::string what) { return Status::error(Code::failed_on_rank, std::move(what)); };
  if (leaving_ && broken_.ok()) {
    return Status::error(Code::cancelled, "this rank has left the job (shoal.shutdown() was called)");
  }
  if (Status loss = loss_of(submission.group); !loss.ok()) {
    return loss;
  }
  if (submission.group >= groups_.size()) {
    return wrong("there is no group " + std::to_string(submission.group));
  }
  if (std::string problem = problem_with_name(submission.name); !problem.empty()) {
    return wrong(std::move(problem));
  }
  if (submission.group >= limits::groups) {
    return Status::error(
        Code::limit, "there are more than " + std::to_string(limits::groups) + " groups: make them once and keep them");
  }
  if (occurrences_.size() >= limits::names) {
    const std::string name = submission.name.empty() ? unnamed : submission.name;
    if (!occurrences_.contains(operation_key(groups_[submission.group]->id, name, 0))) {
      return Status::error(Code::limit, "operations have had more than " + std::to_string(limits::names) +
                                            " different names: use the same names in every step");
    }
  }
  return {};
}

void Node::Impl::submit(Submission submission) {
  if (Status problem = problem_with(submission); !problem.ok()) {
    world_.finish(submission.handle, std::move(problem));
    return;
  }
  Group& group = *groups_[submission.group];
  if (group.ranks.size() == 1) {
    finish_alone(submission);
    return;
  }
  auto made = std::make_unique<Operation>();
  Operation& operation = *made;
  operation.number = next_number_++;
  operation.group = &group;
  operation.submission = std::move(submission);
  operation.progress = now_;

  wire::Opening& opening = operation.opening;
  opening.name = operation.submission.name.empty() ? unnamed : operation.submission.name;
  opening.group = group.id;
  opening.occurrence = operation.submission.occurrence ? *operation.submission.occurrence
                                                       : occurrences_[operation_key(group.id, opening.name, 0)]++;
  opening.key = operation_key(group.id, opening.name, opening.occurrence);

  Submission& s = operation.submission;
  Status failure;
  if (s.failure_code != Code::ok) {
    failure = Status::error(s.failure_code, s.failure, s.failure_rank);
    opening.code = s.failure_code;
    opening.rank = s.failure_rank;
  } else if (!s.failure.empty()) {
    failure = Status::error(Code::failed_on_rank, s.failure, static_cast<std::int32_t>(rank_));
  } else if (s.shape.size() > limits::dimensions) {
    failure =
        Status::error(Code::failed_on_rank, "arrays have at most " + std::to_string(limits::dimensions) + " dimensions",
                      static_cast<std::int32_t>(rank_));
  } else if (operations_.size() - failed_here_ >= config_.open_limit) {
    failure = Status::error(Code::limit,
                            "more than " + std::to_string(config_.open_limit) + " operations are open at once on " +
                                rank_text(rank_, config_) + ": wait for some of them",
                            static_cast<std::int32_t>(rank_));
  }
  if (!failure.ok()) {
    // The others are told through the home, if there is room for that.
    operation.failed_here = true;
    opening.failed = true;
    opening.text = failure.message;
    world_.finish(s.handle, std::move(failure));
    if (failed_here_ >= config_.open_limit) {
      return;
    }
    ++failed_here_;
  } else {
    take_arguments(opening, s);
    check_again(operation, now_ + std::min(s.timeout, first_late));
  }
  if (s.in_parts && !operation.failed_here) {
    in_parts_.emplace(s.handle, operation.number);
  }
  operations_.emplace(operation.number, std::move(made));
  measure(operation);
  plan(operation);
  open(operation);
}

void Node::Impl::contributed(std::uint64_t handle, Range range) {
  const auto number = in_parts_.find(handle);
  if (number == in_parts_.end()) {
    return;
  }
  Operation& operation = *find(number->second);
  operation.contributed.add(range);
  operation.progress = now_;
  for (std::size_t i = 0; i < operation.parts.size(); ++i) {
    const Part& part = operation.parts[i];
    if (!intersection(part.shard, range).empty()) {
      pump(part.server);
    }
  }
}

void Node::Impl::finish_alone(const Submission& submission) {
  if (!submission.failure.empty()) {
    world_.finish(submission.handle,
                  Status::error(Code::failed_on_rank, submission.failure, static_cast<std::int32_t>(rank_)));
    return;
  }
  std::byte* output = submission.output;
  if (output == nullptr && is_gather(submission.collective)) {
    output = world_.allocate_output(submission.handle, {submission.input_bytes});
    if (output == nullptr && submission.input_bytes > 0) {
      world_.finish(submission.handle,
                    Status::error(Code::failed_on_rank,
                                  "there is no memory for the " + std::to_string(submission.input_bytes) +
                                      " bytes that " + rank_text(rank_, config_) + " receives",
                                  static_cast<std::int32_t>(rank_)));
      return;
    }
  }
  // A broadcast's root may have no output.
  if (output != nullptr && output != submission.input && submission.input_bytes > 0) {
    std::memmove(output, submission.input, submission.input_bytes);
  }
  world_.finish(submission.handle, {});
}

// How large it is, and what of the result is wanted.
void Node::Impl::measure(Operation& operation) {
  const Submission& s = operation.submission;
  const bool receives_only = s.collective == Collective::broadcast && !operation.contributes();
  operation.bytes = operation.failed_here ? 0 : receives_only ? s.output_bytes : s.input_bytes;
  operation.opening.bytes = operation.bytes;
  switch (s.collective) {
    case Collective::reduce_scatter:
      operation.wanted = chunk_of(operation.bytes, rows_of(s), operation.group->ranks.size(), operation.group->own);
      break;
    case Collective::broadcast:
      operation.wanted = operation.contributes() ? Range{} : Range{0, operation.bytes};
      break;
    default:
      operation.wanted = {0, operation.bytes};
  }
}

// Which servers work on it.
void Node::Impl::plan(Operation& operation) {
  operation.home = home_of(operation.opening.key, config_);
  const bool sends = operation.contributes();
  const auto add = [&](std::uint32_t server, Range shard) {
    Part& part = operation.parts.emplace_back();
    part.server = server;
    part.shard = shard;
    part.segment = config_.segment_for(servers_[server].window, operation.bytes, shard.size());
    part.leads = servers_[server].leads;
    part.runs.push_back({shard, sends, true});
    part.sent = part.answered = {0, shard.begin};
  };
  if (operation.gathers() || takes_ring(operation) || operation.opening.failed) {
    add(operation.home, {0, operation.bytes});
    return;
  }
  const std::vector<Share> shares = shares_of(operation.bytes, operation.home, config_);
  operation.parts.reserve(shares.size());
  for (const Share& share : shares) {
    add(share.server, share.shard);
  }
  keep_step(operation);
}

// Short operations are all beginning and end, where a server that waits for another only loses time.
void Node::Impl::keep_step(Operation& operation) {
  operation.keeps_step = false;
  const bool is_short = std::any_of(operation.parts.begin(), operation.parts.end(),
                                    [this](const Part& part) { return part.leads && has_smaller_segments(part); });
  for (Part& part : operation.parts) {
    part.keeps_step = servers_[part.server].keeps_step && !is_short;
    operation.keeps_step = operation.keeps_step || part.keeps_step;
    // Multiples of the golden ratio are spread evenly, however servers and ranks are numbered.
    constexpr double golden_ratio = 0.6180339887498949;
    double whole = 0;
    part.head_start =
        static_cast<std::uint32_t>(std::modf(golden_ratio * (part.server + rank_), &whole) * part.segment);
  }
}

bool Node::Impl::takes_ring(const Operation& operation) const {
  return shoal::takes_ring(config_, operation.submission.collective, operation.bytes);
}

void Node::Impl::open(Operation& operation) {
  // Nodes visit servers in an order rotated by their rank.
  const std::size_t count = operation.parts.size();
  for (std::size_t i = 0; i < count; ++i) {
    Part& part = operation.parts[(i + rank_) % count];
    announce(part.server, operation.submission.group);
    const std::span<const std::byte> data = take_inline(operation, part);
    operation.opening.inline_bytes = static_cast<std::uint32_t>(data.size());
    send_to_server(part.server, {.type = Type::open, .operation = operation.number}, wire::encode(operation.opening),
                   data, data.empty() ? 0 : operation.number);
  }
}

std::span<const std::byte> Node::Impl::take_inline(Operation& operation, Part& part) {
  const bool admitted_later = !operation.gathers() && !takes_ring(operation);
  if (operation.opening.failed || !operation.contributes() || !(admitted_later || operation.bytes <= config_.small)) {
    return {};
  }
  node::ServerLink& server = servers_[part.server];
  if (reopening_ && operation.gathers()) {
    // Counts for nothing: what went through the home before must do so again.
    const bool wanted = operation.bytes <= config_.small && operation.opening.exchange == 0;
    return {operation.submission.input, wanted ? static_cast<std::size_t>(operation.bytes) : 0};
  }
  const std::uint32_t bytes = config_.inline_of(part.shard.size(), part.segment);
  if (!operation.has({part.shard.begin, part.shard.begin + bytes})) {
    return {};
  }
  const bool answered_before = operation.opening.finished || !operation.have.empty();
  if (answered_before || bytes == 0 || server.eager + bytes > config_.eager) {
    return {};
  }
  // A part of a shard only saves a round trip, of which there is none to save behind other operations.
  if (bytes < part.shard.size() && (server.unanswered > 0 || server.eager > 0)) {
    return {};
  }
  const std::byte* data = operation.submission.input + part.shard.begin;
  part.eager = bytes;
  part.sent.offset += bytes;
  server.eager += bytes;
  note_sending(operation);
  return {data, bytes};
}

void Node::Impl::announce(std::uint32_t server, std::uint32_t group) {
  if (group == 0 || !servers_[server].announced.insert(group).second) {
    return;
  }
  const Group& members = *groups_[group];
  send_to_server(server, {.type = Type::group}, wire::encode(wire::GroupMembers{members.id, members.ranks}));
}

// What came with openings takes of the window too, so that not more than a window is on its way. But where nothing else
// is, one segment may always be sent, so that operations that wait for their last member hold nothing up.
bool Node::Impl::may_send(const node::ServerLink& link, std::uint64_t length) {
  const auto least = static_cast<std::int64_t>(std::min<std::uint64_t>(length, link.window.segment));
  const auto wanted = static_cast<std::int64_t>(link.unanswered == 0 ? 0 : length + link.eager);
  return link.credit >= std::max(least, wanted);
}

// Of smaller segments no more are on their way than a window has of its own, and more than one only where no other
// server waits for as many: what one link sends at once keeps the node's wire from the others.
bool Node::Impl::has_enough_on_its_way(const Operation& operation, const Part& part, std::uint64_t length) const {
  const node::ServerLink& link = servers_[part.server];
  const std::uint64_t on_its_way = part.unanswered + part.eager;
  if (!has_smaller_segments(part) || on_its_way == 0) {
    return false;
  }
  const auto window = static_cast<std::uint64_t>(std::max<std::int64_t>(link.credit, 0)) + link.unanswered;
  const std::uint64_t segments = std::max<std::uint64_t>(window / link.window.segment, 1);
  return on_its_way + length > segments * part.segment || part.segments_sent() > operation.least_sent();
}

bool Node::Impl::has_smaller_segments(const Part& part) const {
  return part.segment < servers_[part.server].window.segment;
}

// Spends credit on admitted operations, in the server's order.
void Node::Impl::pump(std::uint32_t server) {
  node::ServerLink& link = servers_[server];
  while (!link.admitted.empty()) {
    // One that has failed sends nothing more: its arrays are not the node's any longer.
    Operation* operation = find_going_on(link.admitted.front());
    if (operation == nullptr || operation->part_of(server).all_sent()) {
      link.admitted.pop_front();
      continue;
    }
    Part& part = operation->part_of(server);
    const Cursor at = part.next_to_send();
    const Range segment = part.segment_at(at);
    const std::uint64_t length = segment.size();
    if (!operation->has(segment) || !may_send(link, length) || !operation->in_step(part) ||
        has_enough_on_its_way(*operation, part, length)) {
      return;
    }
    const std::uint64_t least_sent = has_smaller_segments(part) ? operation->least_sent() : 0;
    const bool paces = part.leads && operation->keeps_step;
    const double step = paces ? operation->step() : 1;
    link.credit -= static_cast<std::int64_t>(length);
    link.unanswered += length;
    part.unanswered += length;
    part.sent = {at.run, segment.end};
    const Header header{.type = Type::data,
                        .dtype = operation->submission.dtype,
                        .operation = operation->number,
                        .offset = segment.begin};
    wire::Bytes copied;
    const std::span<const std::byte> data = contribution(*operation, segment, copied);
    note_sending(*operation);
    send_to_server(server, header, std::move(copied), data, data.empty() ? 0 : operation->number);
    // Others' next ones may have waited for this one.
    const bool least_rose = has_smaller_segments(part) && operation->least_sent() > least_sent;
    const bool step_rose = paces && operation->step() > step;
    for (const Part& other : operation->parts) {
      if (least_rose || (step_rose && other.keeps_step)) {
        pump(other.server);
      }
    }
  }
}

void Node::Impl::admitted(Operation& operation, Part& part) {
  part.admitted = true;
  servers_[part.server].admitted.push_back(operation.number);
  if (rank_ != 0 || operation.paced || operation.finished || operation.bytes <= config_.small) {
    return;
  }
  operation.paced = true;
  if (paced_++ == 0) {
    pace_.begin(now_);
  }
}

std::uint64_t Node::Impl::repairs() const {
  std::uint64_t sum = 0;
  for (const node::ServerLink& server : servers_) {
    sum += server.link ? world_.repairs(*server.link) : 0;
  }
  return sum;
}

void Node::Impl::begin_window(std::uint32_t server) {
  node::ServerLink& link = servers_[server];
  link.window = config_.window_of(server);
  link.credit = link.window.credit;
  link.most_credit = config_.credit_of(server, config_.most_credit());
  link.leads = config_.leads(server);
  link.keeps_step = config_.keeps_step(server);
}

void Node::Impl::set_window(const Pace::Setting& window) {
  window_ = window;
  const std::uint8_t flags = window.insistent ? wire::flag_insistent : 0;
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    if (config_.weights[server] > 0) {
      send_to_server(server, {.type = Type::window, .flags = flags, .credit = window.credit});
    }
  }
}

void Node::Impl::note_sending(Operation& operation) {
  if (!std::exchange(operation.sending, true) && !operation.finished) {
    world_.sending(operation.submission.handle);
  }
}

void Node::Impl::answered_part(Part& part) {
  servers_[part.server].unanswered -= std::exchange(part.unanswered, 0);
  answered_eager(part);
}

void Node::Impl::answered_eager(Part& part) { servers_[part.server].eager -= std::exchange(part.eager, 0); }

void Node::Impl::end_if_done(Operation& operation) {
  if (operation.done(config_)) {
    end(operation, {});
  }
}

void Node::Impl::end(Operation& operation, Status status) {
  const std::uint64_t number = operation.number;
  const bool failed = !status.ok();
  if (failed && operation.failure.ok()) {
    operation.failure = status;
  }
  const bool summing = operation.ring && std::any_of(operation.ring->pieces.begin(), operation.ring->pieces.end(),
                                                     [](const node::Ring::Piece& piece) { return !piece.done; });
  if (summing) {
    if (!operation.ending) {
      operation.ending = std::move(status);
    }
    return;
  }
  if (status.ok()) {
    // As a rule all of it has left, or there would be no results; but that a server has what it answers is its word.
    if (operation.unsent > 0) {
      world_.detach(number);
    }
    // The home keeps what others may still fail.
    if (operation.gathers() ? !operation.exchange.through_home : operation.bytes > config_.small) {
      drop_soon(operation.home, number);
    }
  } else {
    world_.detach(number);
    for (const Part& part : operation.parts) {
      send_to_server(part.server, {.type = Type::drop, .operation = number});
    }
  }
  for (Part& part : operation.parts) {
    answered_part(part);
  }
  check_again(operation, never);
  if (operation.submission.in_parts) {
    in_parts_.erase(operation.submission.handle);
  }
  if (unsized(operation)) {
    sized();
  }
  if (operation.paced && --paced_ == 0) {
    pace_.pause(now_);
  }
  if (operation.exchange.id != 0) {
    exchanges_.erase(operation.exchange.id);
  }
  if (operation.failed_here) {
    --failed_here_;
  } else {
    world_.finish(operation.submission.handle, std::move(status));
  }
  std::vector<std::uint32_t> servers;
  for (const Part& part : operation.parts) {
    if (failed && broken_.ok()) {
      servers.push_back(part.server);
    }
  }
  keep_finished(std::move(operations_.extract(number).mapped()));
  // What it held of the windows is free without a word from the servers.
  for (std::uint32_t server : servers) {
    pump(server);
  }
  say_goodbye_if_done();
}

void Node::Impl::check_again(Operation& operation, Time when) {
  if (operation.check_at != never) {
    checks_.erase({operation.check_at, operation.number});
  }
  operation.check_at = when;
  if (when != never) {
    checks_.insert({when, operation.number});
  }
}

void Node::Impl::send_to_server(std::uint32_t server, Header header, wire::Bytes owned,
                                std::span<const std::byte> borrowed, Token token) {
  node::ServerLink& to = servers_[server];
  if (!to.link) {
    return;
  }
  tell_ended(server);
  header.length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
  header.epoch = epoch_;
  header.acknowledged = to.acknowledged = to.results;
  if (Operation* borrower = borrowed.empty() ? nullptr : find(token)) {
    ++borrower->unsent;
  }
  world_.send(*to.link, header, std::move(owned), borrowed, token);
}

std::string Node::Impl::describe(const Operation& operation) const {
  return std::string(name_of(operation.submission.collective)) + " '" + operation.name() + "'";
}

Node::Impl::Operation* Node::Impl::find(std::uint64_t number) {
  const auto found = operations_.find(number);
  return found == operations_.end() ? nullptr : found->second.get();
}

Node::Impl::Operation* Node::Impl::find_any(std::uint64_t number) {
  if (Operation* operation = find(number)) {
    return operation;
  }
  const auto found = finished_.find(number);
  return found == finished_.end() ? nullptr : found->second.get();
}

Node::Impl::Operation* Node::Impl::find_going_on(std::uint64_t number) {
  Operation* operation = find_any(number);
  return operation == nullptr || (operation->finished && !operation->failure.ok()) ? nullptr : operation;
}

}  // namespace shoal
