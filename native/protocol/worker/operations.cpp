// A worker's operations: how they are opened and ended. How they are sent: sender.cpp. docs/protocol/lifecycle.md.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/limits.h"
#include "protocol/agreement.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/worker/impl.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

// What an entry takes beside what it says of itself: its place in a table.
constexpr std::size_t group_overhead = 160;
constexpr std::size_t name_overhead = 64;

std::uint64_t rows_of(const Submission& submission) {
  return submission.shape.empty() ? 0 : static_cast<std::uint64_t>(submission.shape[0]);
}

}  // namespace

namespace worker {

std::optional<std::size_t> Group::index_of(std::uint32_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found - ranks.begin());
}

bool Group::needs(std::uint32_t rank) const { return std::find(needed.begin(), needed.end(), rank) != needed.end(); }

bool Operation::gathers() const { return is_gather(submission.collective); }

bool Operation::contributes() const { return shoal::contributes(submission.collective, group->own, submission.root); }

bool Operation::waits_for_others(const JobConfig& config) const {
  using Receivers = CollectiveTraits::Receivers;
  const Receivers receivers = traits_of(submission.collective).receivers;
  const bool gives_alone = receivers == Receivers::all_but_root && contributes();
  return bytes > config.small && (receivers == Receivers::chunks || gives_alone);
}

bool Operation::shares_results(const JobConfig& config) const {
  return traits_of(submission.collective).shares_results() && bytes > config.small && !config.ring;
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
    if (part.is_reference && !next.empty() && has(next)) {
      least = std::min(least, static_cast<double>(part.bytes_sent()) / static_cast<double>(part.shard.size()));
    }
  }
  return least;
}

bool Operation::in_step(const Part& part) const {
  return !part.follows_reference ||
         static_cast<double>(part.bytes_sent()) <= step() * static_cast<double>(part.shard.size()) + part.stagger;
}

Part& Operation::part_of(std::uint32_t server) {
  return *std::lower_bound(parts.begin(), parts.end(), server,
                           [](const Part& part, std::uint32_t index) { return part.server < index; });
}

// The texts and lists are there twice: as submitted, and in the opening. Four entries in tables lead to it.
std::size_t record_bytes(const Submission& submission, std::size_t servers) {
  constexpr std::size_t entry = 64;
  const std::size_t listed = 8 * (submission.shape.size() + submission.splits.size());
  return sizeof(Operation) + 4 * entry + servers * (sizeof(Part) + sizeof(wire::Run)) +
         2 * (submission.name.size() + submission.failure.size() + listed);
}

bool Operation::done(const JobConfig& config) const {
  const bool waits = waits_for_others(config);
  return !failed_here && std::all_of(parts.begin(), parts.end(),
                                     [waits](const Part& part) { return part.done && (part.settled || !waits); });
}

}  // namespace worker

std::uint32_t Worker::Impl::make_group(std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> needed,
                                       const std::string& name) {
  auto group = std::make_unique<Group>();
  // Group 0 has the id that every server knows.
  const bool world = groups_.empty();
  const std::uint64_t made = world ? 0 : ++made_[group_id(ranks, name, 0)];
  group->id = group_id(ranks, name, made);
  groups_bytes_ += group_overhead + sizeof(std::uint32_t) * (ranks.size() + needed.size());
  group->too_many = groups_bytes_ > config_.tables.groups && !world;
  if (!group->too_many) {
    group->ranks = std::move(ranks);
    group->needed = std::move(needed);
    group->own = group->index_of(rank_).value_or(0);
  }
  groups_.push_back(std::move(group));
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

Status Worker::Impl::problem_with(const Submission& submission) const {
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
  if (groups_[submission.group]->too_many) {
    return too_much("the groups", "groups_bytes", config_.tables.groups, "make groups once and keep them");
  }
  if (occurrences_.size() * name_overhead >= config_.tables.names) {
    const std::string name = submission.name.empty() ? unnamed : submission.name;
    if (!occurrences_.contains(operation_key(groups_[submission.group]->id, name, 0))) {
      return too_much("the names of operations", "names_bytes", config_.tables.names,
                      std::to_string(occurrences_.size()) + " names were used; use the same names in every step");
    }
  }
  return {};
}

Status Worker::Impl::too_much(const char* what, const char* limit, std::size_t allowed,
                              const std::string& advice) const {
  return Status::error(Code::limit,
                       std::string(what) + " take all the memory that they may on " + rank_text(rank_, config_) + ", " +
                           bytes_text(allowed) + " (" + limit + "): " + advice,
                       static_cast<std::int32_t>(rank_));
}

void Worker::Impl::submit(Submission submission) {
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
  } else if (open_bytes_ - failed_bytes_ >= config_.tables.open) {
    failure = too_much("the operations that are open", "open_bytes", config_.tables.open,
                       std::to_string(operations_.size()) + " are open; wait for some of them");
  }
  if (!failure.ok()) {
    // The others are told through the home, if there is room for that.
    operation.failed_here = true;
    opening.failed = true;
    opening.text = failure.message;
    world_.finish(s.handle, std::move(failure));
    if (failed_bytes_ >= config_.tables.open) {
      return;
    }
  } else {
    take_arguments(opening, s);
    check_again(operation, now_ + std::min(s.timeout, first_late));
  }
  if (s.streamed && !operation.failed_here) {
    streamed_.emplace(s.handle, operation.number);
  }
  operations_.emplace(operation.number, std::move(made));
  measure(operation);
  plan(operation);
  operation.record = worker::record_bytes(s, operation.parts.size());
  open_bytes_ += operation.record;
  failed_bytes_ += operation.failed_here ? operation.record : 0;
  open(operation);
}

void Worker::Impl::contributed(std::uint64_t handle, Range range) {
  const auto number = streamed_.find(handle);
  if (number == streamed_.end()) {
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

void Worker::Impl::finish_alone(const Submission& submission) {
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
void Worker::Impl::measure(Operation& operation) {
  const Submission& s = operation.submission;
  const bool receives_only = traits_of(s.collective).has_root() && !operation.contributes();
  operation.bytes = operation.failed_here ? 0 : receives_only ? s.output_bytes : s.input_bytes;
  operation.opening.bytes = operation.bytes;
  operation.wanted = received_by(s.collective, operation.bytes, rows_of(s), operation.group->ranks.size(),
                                 operation.group->own, s.root);
}

// Which servers work on it.
void Worker::Impl::plan(Operation& operation) {
  operation.home = home_of(operation.opening.key, config_);
  const bool sends = operation.contributes();
  const auto add = [&](std::uint32_t server, Range shard) {
    Part& part = operation.parts.emplace_back();
    part.server = server;
    part.shard = shard;
    part.segment = config_.segment_for(servers_[server].window, operation.bytes, shard.size());
    part.is_reference = servers_[server].is_reference;
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
  follow_reference(operation);
}

// Short operations are all beginning and end, where a server that waits for another only loses time.
void Worker::Impl::follow_reference(Operation& operation) {
  operation.follows_reference = false;
  const bool is_short = std::any_of(operation.parts.begin(), operation.parts.end(), [this](const Part& part) {
    return part.is_reference && has_smaller_segments(part);
  });
  for (Part& part : operation.parts) {
    part.follows_reference = servers_[part.server].follows_reference && !is_short;
    operation.follows_reference = operation.follows_reference || part.follows_reference;
    // Multiples of the golden ratio are spread evenly, however servers and ranks are numbered.
    constexpr double golden_ratio = 0.6180339887498949;
    double whole = 0;
    part.stagger = static_cast<std::uint32_t>(std::modf(golden_ratio * (part.server + rank_), &whole) * part.segment);
  }
}

bool Worker::Impl::takes_ring(const Operation& operation) const {
  return shoal::takes_ring(config_, operation.submission.collective, operation.bytes);
}

void Worker::Impl::open(Operation& operation) {
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

void Worker::Impl::answered_part(Part& part) {
  servers_[part.server].unanswered -= std::exchange(part.unanswered, 0);
  answered_eager(part);
}

void Worker::Impl::answered_eager(Part& part) { servers_[part.server].eager -= std::exchange(part.eager, 0); }

void Worker::Impl::end_if_done(Operation& operation) {
  if (operation.done(config_)) {
    end(operation, {});
  }
}

void Worker::Impl::end(Operation& operation, Status status) {
  const std::uint64_t number = operation.number;
  const bool failed = !status.ok();
  if (failed && operation.failure.ok()) {
    operation.failure = status;
  }
  const bool summing = operation.ring && std::any_of(operation.ring->pieces.begin(), operation.ring->pieces.end(),
                                                     [](const worker::Ring::Piece& piece) { return !piece.done; });
  if (summing) {
    if (!operation.ending) {
      operation.ending = std::move(status);
    }
    return;
  }
  if (status.ok()) {
    // As a rule all of it has left, or there would be no results; but that a server has what it answers is its word.
    detach(operation);
    // The home keeps what others may still fail.
    if (operation.gathers() ? !operation.exchange.through_home : operation.bytes > config_.small) {
      drop_soon(operation.home, number);
    }
  } else {
    detach(operation);
    for (const Part& part : operation.parts) {
      send_to_server(part.server, {.type = Type::drop, .operation = number});
    }
  }
  for (Part& part : operation.parts) {
    answered_part(part);
  }
  check_again(operation, never);
  if (operation.submission.streamed) {
    streamed_.erase(operation.submission.handle);
  }
  if (unsized(operation)) {
    sized();
  }
  if (operation.controlled && --controlled_ == 0) {
    congestion_.pause(now_);
  }
  if (operation.exchange.id != 0) {
    exchanges_.erase(operation.exchange.id);
  }
  open_bytes_ -= operation.record;
  if (operation.failed_here) {
    failed_bytes_ -= operation.record;
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

void Worker::Impl::check_again(Operation& operation, Time when) {
  if (operation.check_at != never) {
    checks_.erase({operation.check_at, operation.number});
  }
  operation.check_at = when;
  if (when != never) {
    checks_.insert({when, operation.number});
  }
}

void Worker::Impl::send_to_server(std::uint32_t server, Header header, wire::Bytes owned,
                                  std::span<const std::byte> borrowed, Token token) {
  worker::ServerLink& to = servers_[server];
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

// To look for frames takes the longer the more is on its way.
void Worker::Impl::detach(const Operation& operation) {
  if (operation.unsent > 0) {
    world_.detach(operation.number);
  }
}

std::string Worker::Impl::describe(const Operation& operation) const {
  return std::string(name_of(operation.submission.collective)) + " '" + operation.name() + "'";
}

Worker::Impl::Operation* Worker::Impl::find(std::uint64_t number) {
  const auto found = operations_.find(number);
  return found == operations_.end() ? nullptr : found->second.get();
}

Worker::Impl::Operation* Worker::Impl::find_any(std::uint64_t number) {
  if (Operation* operation = find(number)) {
    return operation;
  }
  const auto found = finished_.find(number);
  return found == finished_.end() ? nullptr : found->second.get();
}

Worker::Impl::Operation* Worker::Impl::find_going_on(std::uint64_t number) {
  Operation* operation = find_any(number);
  return operation == nullptr || (operation->finished && !operation->failure.ok()) ? nullptr : operation;
}

}  // namespace shoal
