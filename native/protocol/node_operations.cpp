// A node's operations: how they are opened, sent, and ended. docs/protocol.md, section 7.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "protocol/keys.h"
#include "protocol/node_impl.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

// The name of operations without one. No user's operation may have it.
constexpr const char* unnamed = "#";

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

Part& Operation::part_of(std::uint32_t server) {
  return *std::lower_bound(parts.begin(), parts.end(), server,
                           [](const Part& part, std::uint32_t index) { return part.server < index; });
}

bool Operation::done() const {
  return !failed_here && std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.done; });
}

}  // namespace node

std::uint32_t Node::Impl::make_group(std::vector<std::uint32_t> ranks, const std::string& name) {
  auto group = std::make_unique<Group>();
  // Group 0 has the id that every server knows.
  const bool world = groups_.empty();
  const std::uint64_t made = world ? 0 : ++made_[group_id(ranks, name, 0)];
  group->id = group_id(ranks, name, made);
  group->ranks = std::move(ranks);
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
  if (submission.name == unnamed || submission.name.size() > limits::name_bytes) {
    return wrong("a name has 1 to " + std::to_string(limits::name_bytes) + " bytes and is not '#'");
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
  operation.name = submission.name.empty() ? unnamed : submission.name;
  operation.submission = std::move(submission);
  operation.progress = now_;

  const std::uint32_t occurrence = occurrences_[operation_key(group.id, operation.name, 0)]++;
  wire::Opening opening;
  opening.key = operation_key(group.id, operation.name, occurrence);
  opening.occurrence = occurrence;
  operation.home = home_of(opening.key, config_);

  Submission& s = operation.submission;
  Status failure;
  if (!s.failure.empty()) {
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
    opening.collective = s.collective;
    opening.op = s.op;
    opening.dtype = s.dtype;
    opening.root = s.root;
    opening.shape = s.shape;
    opening.splits = s.splits;
    check_again(operation, now_ + std::min(s.timeout, node::first_late));
  }
  operations_.emplace(operation.number, std::move(made));
  plan(operation);
  opening.bytes = operation.bytes;
  open(operation, opening);
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

// Which servers work on it, and what of the result is wanted.
void Node::Impl::plan(Operation& operation) {
  const Submission& s = operation.submission;
  const auto segment_for = [&](std::uint32_t server) {
    return config_.segment_for(servers_[server].window, operation.bytes);
  };
  const bool receives_only = s.collective == Collective::broadcast && !operation.contributes();
  operation.bytes = operation.failed_here ? 0 : receives_only ? s.output_bytes : s.input_bytes;
  if (operation.bytes <= config_.small || operation.gathers() || takes_ring(operation)) {
    operation.parts.push_back(
        Part{.server = operation.home, .shard = {0, operation.bytes}, .segment = segment_for(operation.home)});
  } else {
    for (std::uint32_t server = 0; server < config_.servers(); ++server) {
      const Range shard = shard_of(operation.bytes, config_.weights, server);
      if (!shard.empty() || server == operation.home) {
        operation.parts.push_back(Part{.server = server,
                                       .shard = shard,
                                       .segment = segment_for(server),
                                       .sent = shard.begin,
                                       .answered = shard.begin});
      }
    }
  }
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

bool Node::Impl::takes_ring(const Operation& operation) const {
  return shoal::takes_ring(config_, operation.submission.collective, operation.bytes);
}

void Node::Impl::open(Operation& operation, const wire::Opening& opening) {
  wire::Opening sent = opening;
  sent.group = operation.group->id;
  sent.name = operation.name;
  // Nodes visit servers in an order rotated by their rank.
  const std::size_t count = operation.parts.size();
  for (std::size_t i = 0; i < count; ++i) {
    Part& part = operation.parts[(i + rank_) % count];
    announce(part.server, operation.submission.group);
    const std::span<const std::byte> data = take_inline(operation, part);
    sent.inline_bytes = part.eager;
    send_to_server(part.server, {.type = Type::open, .operation = operation.number}, wire::encode(sent), data,
                   data.empty() ? 0 : operation.number);
  }
}

std::span<const std::byte> Node::Impl::take_inline(Operation& operation, Part& part) {
  const bool admitted_later = !operation.gathers() && !takes_ring(operation);
  if (operation.failed_here || !operation.contributes() || !(admitted_later || operation.bytes <= config_.small)) {
    return {};
  }
  node::ServerLink& server = servers_[part.server];
  const std::uint32_t bytes = config_.inline_of(part.shard.size(), part.segment);
  if (bytes == 0 || server.eager + bytes > config_.eager) {
    return {};
  }
  // A part of a shard only saves a round trip, of which there is none to save behind other operations.
  if (bytes < part.shard.size() && (server.unanswered > 0 || server.eager > 0)) {
    return {};
  }
  const std::byte* data = operation.submission.input + part.shard.begin;
  part.eager = bytes;
  part.sent += bytes;
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

// Spends credit on admitted operations, in the server's order.
void Node::Impl::pump(std::uint32_t server) {
  node::ServerLink& link = servers_[server];
  while (!link.admitted.empty()) {
    Operation* operation = find(link.admitted.front());
    if (operation == nullptr || operation->part_of(server).sent == operation->part_of(server).shard.end) {
      link.admitted.pop_front();
      continue;
    }
    Part& part = operation->part_of(server);
    const std::uint64_t length = std::min<std::uint64_t>(part.segment, part.shard.end - part.sent);
    if (!may_send(link, length)) {
      return;
    }
    link.credit -= static_cast<std::int64_t>(length);
    link.unanswered += length;
    const Header header{
        .type = Type::data, .dtype = operation->submission.dtype, .operation = operation->number, .offset = part.sent};
    const std::byte* data = operation->submission.input + part.sent;
    part.sent += length;
    note_sending(*operation);
    send_to_server(server, header, {}, {data, static_cast<std::size_t>(length)}, operation->number);
  }
}

void Node::Impl::follow_pace(Operation& operation) {
  if (rank_ != 0 || operation.paced || operation.bytes <= config_.small) {
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

void Node::Impl::set_window(std::uint32_t credit) {
  for (std::uint32_t server = 0; server < config_.servers(); ++server) {
    if (config_.weights[server] > 0) {
      send_to_server(server, {.type = Type::window, .credit = credit});
    }
  }
}

void Node::Impl::note_sending(Operation& operation) {
  if (!std::exchange(operation.sending, true)) {
    world_.sending(operation.submission.handle);
  }
}

void Node::Impl::answered_eager(Part& part) { servers_[part.server].eager -= std::exchange(part.eager, 0); }

void Node::Impl::end_if_done(Operation& operation) {
  if (operation.done()) {
    end(operation, {});
  }
}

void Node::Impl::end(Operation& operation, Status status) {
  const std::uint64_t number = operation.number;
  const bool failed = !status.ok();
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
      send_to_server(operation.home, {.type = Type::drop, .operation = number});
    }
  } else {
    world_.detach(number);
    for (const Part& part : operation.parts) {
      send_to_server(part.server, {.type = Type::drop, .operation = number});
    }
  }
  for (Part& part : operation.parts) {
    if (operation.sends_data()) {
      servers_[part.server].unanswered -= part.unanswered();
    }
    answered_eager(part);
  }
  check_again(operation, never);
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
  const std::vector<Part> parts = failed && broken_.ok() ? std::move(operation.parts) : std::vector<Part>();
  operations_.erase(number);
  // What it held of the windows is free without a word from the servers.
  for (const Part& part : parts) {
    pump(part.server);
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
  header.length = static_cast<std::uint32_t>(owned.size() + borrowed.size());
  header.acknowledged = to.results;
  if (Operation* borrower = borrowed.empty() ? nullptr : find(token)) {
    ++borrower->unsent;
  }
  world_.send(*to.link, header, std::move(owned), borrowed, token);
}

std::string Node::Impl::describe(const Operation& operation) const {
  return std::string(name_of(operation.submission.collective)) + " '" + operation.name + "'";
}

Node::Impl::Operation* Node::Impl::find(std::uint64_t number) {
  const auto found = operations_.find(number);
  return found == operations_.end() ? nullptr : found->second.get();
}

}  // namespace shoal
