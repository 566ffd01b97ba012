#include "protocol/worker/transfers.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::worker {

using wire::Header;
using wire::Type;

namespace {

// Which server gave this number.
std::uint64_t server_of(std::uint64_t number) { return (number >> 40) - 1; }

// More than any output can have; what is added up below it does not overflow.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 62;

std::uint32_t previous_in_ring(const Operation& operation) {
  return operation.group().member_after(operation.group().size() - 1);
}

std::uint32_t next_in_ring(const Operation& operation) { return operation.group().member_after(1); }

}  // namespace

Transfers::Transfers(const Environment& environment, const OperationTable& operations, Links& links)
    : environment_(environment),
      operations_(operations),
      links_(links),
      port_of_nodes_(environment.config().port_window(Senders::nodes)),
      port_of_ranks_(environment.config().port_window(Senders::ranks)),
      heard_(environment.config().servers()) {}

// --- Begin ---

Status Transfers::receive_sizes(std::uint32_t server, const Frame& frame, std::optional<Status>& problem) {
  wire::Sizes sizes;
  if (Status status = wire::decode(frame.bytes(), sizes); !status.ok()) {
    return status;
  }
  Operation* operation = operations_.find(frame.header.operation);
  const std::uint64_t giver = server_of(sizes.exchange);
  const bool is_next = giver == server && sizes.exchange > heard_[giver];
  // One that was open in an epoch before keeps the number that it had.
  const bool is_known =
      giver < heard_.size() && environment_.epoch() > 0 && (operation == nullptr || operation->is_reopened());
  if (!is_next && !is_known) {
    return refused("SIZES with exchange " + std::to_string(sizes.exchange) + ", which is not its next");
  }
  heard_[giver] = std::max(heard_[giver], sizes.exchange);
  if (operation == nullptr || operation->failed_here()) {
    forget_grants(sizes.exchange);
    return {};
  }
  const std::size_t blocks = operation->takes_ring() ? 0 : operation->group().size();
  if (operation->needs_admission() || operation->transfer().has_begun() || sizes.blocks.size() != blocks) {
    return refused("unexpected SIZES for '" + operation->name() + "'");
  }
  const bool awaited_number = operation->awaits_number();
  Status status;
  if (!operation->takes_ring()) {
    status = start_blocks(*operation, sizes, (frame.header.flags & wire::flag_inline) != 0, problem);
  } else if (Status why = start_ring(*operation, sizes.exchange); !why.ok()) {
    problem = std::move(why);
  }
  if (awaited_number && !operation->awaits_number()) {
    note_numbered();
  }
  return status;
}

Status Transfers::start_blocks(Operation& operation, const wire::Sizes& sizes, bool through_home,
                               std::optional<Status>& problem) {
  const Submission& s = operation.submission();
  const std::size_t members = sizes.blocks.size();
  const std::size_t own = operation.group().own;
  const bool same_to_all = traits_of(s.collective).same_blocks;
  BlockTransfer& transfer = operation.transfer();
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  for (const std::uint64_t block : sizes.blocks) {
    if (block > most_bytes - in) {
      return refused("SIZES for '" + operation.name() + "' with more bytes than there can be");
    }
    in += block;
  }
  in = 0;
  transfer.begin(sizes.exchange, through_home, members);
  for (std::size_t i = 0; i < members; ++i) {
    const std::uint64_t sent = same_to_all ? s.input_bytes : static_cast<std::uint64_t>(s.splits[i]);
    transfer.add_member({in, in + sizes.blocks[i]}, {out, out + sent});
    in += sizes.blocks[i];
    out += same_to_all ? 0 : sent;
  }
  operation.set_wanted({0, in});
  operation.watch().move(environment_.now());
  Block& from_own = transfer.outgoing(own);
  Block& to_own = transfer.incoming(own);
  if (to_own.range().size() != from_own.range().size()) {
    return refused("SIZES for '" + operation.name() + "' with a wrong size of this rank's own block");
  }
  if (Status status = place_output(operation, sizes.blocks, in); !status.ok()) {
    forget_grants(sizes.exchange);
    problem = std::move(status);
    return {};
  }
  if (through_home) {
    return {};
  }
  in_progress_.emplace(sizes.exchange, operation.number());
  std::byte* const own_block = s.output + to_own.range().begin;
  if (!from_own.range().empty() && own_block != s.input + from_own.range().begin) {
    std::memmove(own_block, s.input + from_own.range().begin, from_own.range().size());
  }
  from_own.move_all();
  to_own.move_all();
  for (std::size_t i = 0; i < members; ++i) {
    const std::uint32_t rank = operation.group().ranks[i];
    if (!transfer.outgoing(i).grant(early_grant(sizes.exchange, rank))) {
      problem = granted_too_much(operation, rank);
    }
  }
  forget_grants(sizes.exchange);
  senders_ += senders_of(operation);
  if (problem) {
    return {};
  }
  for (std::size_t step = 1; step < members; ++step) {
    start_with(operation, (own + step) % members);
  }
  return {};
}

// Why there is no place for what comes; ok: there is.
Status Transfers::place_output(Operation& operation, const std::vector<std::uint64_t>& sizes,
                               std::uint64_t bytes) const {
  std::string problem;
  const Submission& s = operation.submission();
  if (s.output == nullptr) {
    operation.set_output(environment_.world().allocate_output(s.handle, sizes), bytes);
    problem = s.output == nullptr && bytes > 0 ? "for which there is no memory" : "";
  } else if (s.output_bytes != bytes) {
    problem = "but its output has " + std::to_string(s.output_bytes);
  }
  if (problem.empty()) {
    return {};
  }
  return Status::error(Code::failed_on_rank,
                       "'" + operation.name() + "' on " + environment_.own_name() + " receives " +
                           std::to_string(bytes) + " bytes, " + problem,
                       environment_.own_rank());
}

// A rank's mistake before the transfer began: the server that says how it begins is not to blame.
Status Transfers::granted_too_much(const Operation& operation, std::uint32_t rank) const {
  return Status::error(Code::protocol,
                       "'" + operation.name() + "': " + rank_text(rank, environment_.config()) + " asks " +
                           environment_.own_name() + " for more than there is for it",
                       static_cast<std::int32_t>(rank));
}

// Why it cannot begin; ok: it has.
Status Transfers::start_ring(Operation& operation, std::uint64_t number) {
  operation.transfer().begin(number);
  operation.ring().emplace(operation.bytes(), operation.group().size(), operation.group().own,
                           environment_.config().segment);
  operation.watch().move(environment_.now());
  in_progress_.emplace(number, operation.number());
  const std::uint32_t next = next_in_ring(operation);
  const bool fits = operation.ring()->grant(early_grant(number, next));
  forget_grants(number);
  if (!fits) {
    return granted_too_much(operation, next);
  }
  const std::size_t members = operation.group().size();
  start_with(operation, (operation.group().own + 1) % members);
  start_with(operation, (operation.group().own + members - 1) % members);
  return {};
}

void Transfers::begin_with(std::uint32_t rank) {
  std::vector<std::uint64_t> waiting;
  for (const auto& [number, operation] : in_progress_) {
    waiting.push_back(operation);
  }
  std::sort(waiting.begin(), waiting.end());
  for (const std::uint64_t number : waiting) {
    Operation& operation = *operations_.find(number);
    if (const auto member = operation.group().index_of(rank)) {
      start_with(operation, *member);
    }
  }
}

// Makes the link if it is needed and this rank's to make; then grants and sends.
void Transfers::start_with(Operation& operation, std::size_t member) {
  const std::uint32_t rank = operation.group().ranks[member];
  const bool needed = operation.ring() ? rank == next_in_ring(operation) || rank == previous_in_ring(operation)
                                       : !operation.transfer().incoming(member).range().empty() ||
                                             !operation.transfer().outgoing(member).range().empty();
  if (!needed) {
    return;
  }
  if (!links_.has_peer(rank)) {
    links_.make_peer(rank);
    return;
  }
  if (operation.ring()) {
    // In a ring of two, the next and the previous member are the same.
    if (rank == previous_in_ring(operation)) {
      const std::uint64_t credit = environment_.config().credit;
      // A server's port has the windows of all members to share out, and here is one sender alone.
      grant(rank, operation, operation.ring()->first_grant(credit * operation.group().size()));
    }
    send_ring(operation);
    return;
  }
  Block& incoming = operation.transfer().incoming(member);
  if (incoming.granted() == 0) {
    const std::uint64_t first = std::min(window_of(operation, member), incoming.range().size());
    incoming.grant(first);
    grant(rank, operation, first);
  }
  send_block(operation, member);
}

bool Transfers::is_elsewhere(const Operation& operation, std::size_t member) const {
  const std::vector<std::uint32_t>& leaders = environment_.config().leaders;
  const std::uint32_t rank = operation.group().ranks[member];
  return leaders.empty() ? rank != environment_.rank() : leaders[rank] != leaders[environment_.rank()];
}

std::size_t Transfers::senders_of(const Operation& operation) const {
  std::size_t senders = 0;
  for (std::size_t member = 0; member < operation.transfer().members(); ++member) {
    senders += is_elsewhere(operation, member) && !operation.transfer().incoming(member).is_done() ? 1 : 0;
  }
  return senders;
}

// What the member may have on its way to this rank: whole segments, one in any case.
std::uint64_t Transfers::window_of(const Operation& operation, std::size_t member) const {
  const JobConfig& config = environment_.config();
  const JobConfig::Window window = config.largest_window(operation.group().senders);
  if (!is_elsewhere(operation, member)) {
    return window.credit;
  }
  const std::uint64_t port = operation.group().senders == Senders::nodes ? port_of_nodes_ : port_of_ranks_;
  const std::uint64_t part = port / std::max<std::size_t>(senders_, 1);
  return std::max<std::uint64_t>(part / window.segment, 1) * window.segment;
}

// --- Frames ---

Status Transfers::check_header(std::uint32_t rank, const Header& header) const {
  switch (header.type) {
    case Type::grant:
      return header.length == 0 ? Status{} : refused("GRANT with a payload");
    case Type::data:
      return check_data(rank, header);
    default:
      return refused(std::string(wire::name_of(header.type)) + " between nodes");
  }
}

Status Transfers::check_data(std::uint32_t rank, const Header& header) const {
  if (header.length == 0 || header.length > environment_.config().segment) {
    return refused("DATA of " + std::to_string(header.length) + " bytes between nodes");
  }
  const Operation* operation = find(header.operation);
  if (operation == nullptr) {
    return was_heard(header.operation) ? Status{} : refused("DATA of an exchange that was not granted");
  }
  const std::optional<std::size_t> member = operation->group().index_of(rank);
  if (!member || header.dtype != operation->submission().dtype) {
    return refused("DATA that is not part of '" + operation->name() + "'");
  }
  if (operation->ring()) {
    const bool expected =
        rank == previous_in_ring(*operation) && operation->ring()->expects(header.offset, header.length);
    return expected ? Status{} : refused("DATA of '" + operation->name() + "' that is not the ring's next piece");
  }
  return operation->transfer().incoming(*member).expects(header.offset, header.length)
             ? Status{}
             : refused("DATA of '" + operation->name() + "' that was not granted");
}

Status Transfers::receive(std::uint32_t rank, Frame& frame) {
  if (frame.header.type == Type::grant) {
    return receive_grant(rank, frame.header);
  }
  Operation* operation = find(frame.header.operation);
  if (operation == nullptr) {
    return {};  // ended in the meantime
  }
  if (operation->ring()) {
    receive_ring(*operation, frame);
  } else {
    receive_block(*operation, rank, frame);
  }
  return {};
}

Status Transfers::receive_grant(std::uint32_t rank, const Header& header) {
  Operation* operation = find(header.operation);
  if (operation == nullptr) {
    return keep_early_grant(rank, header);
  }
  const std::optional<std::size_t> member = operation->group().index_of(rank);
  if (!member) {
    return refused("GRANT that is not part of '" + operation->name() + "'");
  }
  if (operation->ring()) {
    if (rank != next_in_ring(*operation) || !operation->ring()->grant(header.credit)) {
      return refused("GRANT that is not part of '" + operation->name() + "'");
    }
    send_ring(*operation);
    return {};
  }
  if (!operation->transfer().outgoing(*member).grant(header.credit)) {
    return refused("GRANT beyond the block of '" + operation->name() + "'");
  }
  send_block(*operation, *member);
  return {};
}

Status Transfers::keep_early_grant(std::uint32_t rank, const Header& header) {
  if (server_of(header.operation) >= heard_.size()) {
    return refused("GRANT for an exchange of no server");
  }
  if (was_heard(header.operation) && unnumbered_ == 0) {
    return {};  // it has ended
  }
  early_grants_[{header.operation, rank}] += header.credit;
  // As many as the peer may have open, each granted once before it gets data; and some that have ended.
  const JobConfig& config = environment_.config();
  const std::size_t of_peer = config.tables.open / sizeof(Operation) + 1;
  const std::size_t most = (unnumbered_ > 0 ? 4 : 1) * of_peer * config.size();
  return early_grants_.size() <= most ? Status{} : refused("too many grants for exchanges that have not begun");
}

void Transfers::receive_block(Operation& operation, std::uint32_t rank, const Frame& frame) {
  const std::size_t member = *operation.group().index_of(rank);
  Block& block = operation.transfer().incoming(member);
  const std::uint64_t length = frame.header.length;
  const std::uint64_t begin = block.range().begin + block.moved();
  std::memcpy(operation.submission().output + begin, frame.payload.data(), length);
  block.move(length);
  if (operation.submission().streamed) {
    environment_.world().received(operation.handle(), {begin, begin + length});
  }
  if (block.is_done() && is_elsewhere(operation, member)) {
    --senders_;
  }
  operation.watch().move(environment_.now());
  // Windows grow when other blocks are done, and shrink when others begin.
  const std::uint64_t window = window_of(operation, member);
  const std::uint64_t on_its_way = block.granted() - block.moved();
  const std::uint64_t more = std::min(window - std::min(window, on_its_way), block.range().size() - block.granted());
  block.grant(more);
  grant(rank, operation, more);
}

void Transfers::receive_ring(Operation& operation, Frame& frame) {
  Ring& ring = *operation.ring();
  const Submission& s = operation.submission();
  const Ring::Received received = ring.receive();
  const Range& piece = received.piece;
  operation.watch().move(environment_.now());
  std::byte* output = s.output + piece.begin;
  if (!received.is_summed) {
    std::memcpy(output, frame.payload.data(), piece.size());
    ring.place(piece.size());
    proceed(operation);
    return;
  }
  Sum sum;
  sum.destination = output;
  sum.sources = {frame.payload.data(), s.input + piece.begin};
  sum.count = piece.size() / size_of(s.dtype);
  sum.dtype = s.dtype;
  // The mean is divided once, in the last step.
  sum.op = s.op == Operator::mean && !received.is_last_sum ? Operator::sum : s.op;
  sum.divisor = s.divisor > 0 ? s.divisor : static_cast<double>(operation.group().size());
  sum.token = next_sum_++;
  ring.begin_sum(piece.size(), std::move(frame.payload), sum.token);
  sums_.emplace(sum.token, operation.number());
  environment_.world().sum(std::move(sum));
}

Operation& Transfers::end_sum(Token token) {
  Operation& operation = *operations_.find(sums_.extract(token).mapped());
  operation.ring()->end_sum(token);
  return operation;
}

void Transfers::proceed(Operation& operation) {
  grant(previous_in_ring(operation), operation, operation.ring()->process());
  send_ring(operation);
}

// --- Sending ---

void Transfers::send_block(Operation& operation, std::size_t member) {
  Block& block = operation.transfer().outgoing(member);
  const std::uint32_t rank = operation.group().ranks[member];
  while (links_.has_peer(rank)) {
    const Range next = block.next(environment_.config().largest_window(operation.group().senders).segment);
    if (next.empty() || !operation.has_contribution(next)) {
      return;
    }
    const std::uint64_t offset = block.moved();
    block.move(next.size());
    send_data(operation, rank, operation.submission().input + next.begin, offset, next.size());
  }
}

void Transfers::send_on(Operation& operation) {
  const std::size_t members = operation.transfer().members();
  for (std::size_t step = 1; step < members; ++step) {
    send_block(operation, (operation.group().own + step) % members);
  }
}

void Transfers::send_ring(Operation& operation) {
  Ring& ring = *operation.ring();
  const std::uint32_t rank = next_in_ring(operation);
  while (links_.has_peer(rank)) {
    const Range next = ring.next_to_send();
    if (next.empty()) {
      return;
    }
    // The own chunk is the contribution, everything after it came by.
    const std::byte* from = ring.sends_own() ? operation.submission().input : operation.submission().output;
    const std::uint64_t offset = ring.sent();
    ring.send(next.size());
    send_data(operation, rank, from + next.begin, offset, next.size());
  }
}

void Transfers::send_data(Operation& operation, std::uint32_t rank, const std::byte* from, std::uint64_t offset,
                          std::uint64_t length) const {
  const Header header{.type = Type::data,
                      .dtype = operation.submission().dtype,
                      .operation = operation.transfer().number(),
                      .offset = offset};
  if (operation.begins_to_send()) {
    environment_.world().sending(operation.handle());
  }
  operation.count_unsent();
  links_.send_to_peer(rank, header, {from, static_cast<std::size_t>(length)}, operation.number());
}

void Transfers::grant(std::uint32_t rank, const Operation& operation, std::uint64_t bytes) const {
  if (bytes > 0) {
    links_.send_to_peer(
        rank,
        {.type = Type::grant, .operation = operation.transfer().number(), .credit = static_cast<std::uint32_t>(bytes)});
  }
}

// --- Numbers ---

Operation* Transfers::find(std::uint64_t number) const {
  const auto found = in_progress_.find(number);
  return found == in_progress_.end() ? nullptr : operations_.find(found->second);
}

void Transfers::end(const Operation& operation) {
  if (operation.awaits_number()) {
    note_numbered();
  }
  if (in_progress_.erase(operation.transfer().number()) > 0 && !operation.ring()) {
    senders_ -= senders_of(operation);
  }
}

void Transfers::note_reopened(const Operation& operation) {
  if (!operation.is_finished() && operation.awaits_number()) {
    ++unnumbered_;
  }
}

// With the last of them it is clear again which transfers have ended here.
void Transfers::note_numbered() {
  if (--unnumbered_ == 0) {
    std::erase_if(early_grants_, [this](const auto& entry) { return was_heard(entry.first.first); });
  }
}

std::uint64_t Transfers::early_grant(std::uint64_t number, std::uint32_t rank) const {
  const auto early = early_grants_.find({number, rank});
  return early == early_grants_.end() ? 0 : early->second;
}

// Nobody will ask for them any more: the transfer has begun here, or has ended before it could.
void Transfers::forget_grants(std::uint64_t number) {
  early_grants_.erase(early_grants_.lower_bound({number, 0}), early_grants_.lower_bound({number + 1, 0}));
}

bool Transfers::was_heard(std::uint64_t number) const {
  const std::uint64_t server = server_of(number);
  return server < heard_.size() && number <= heard_[server];
}

std::vector<Operation*> Transfers::lacking(std::uint32_t rank) const {
  std::vector<Operation*> lacking;
  for (const auto& [number, of] : in_progress_) {
    Operation* operation = operations_.find(of);
    const std::optional<std::size_t> member = operation->group().index_of(rank);
    const bool lacks = member && (operation->ring() ? rank == previous_in_ring(*operation)
                                                    : !operation->transfer().incoming(*member).is_done());
    if (lacks) {
      lacking.push_back(operation);
    }
  }
  return lacking;
}

void Transfers::check_invariants() const {
  std::size_t unnumbered = 0;
  std::size_t sums = 0;
  std::size_t senders = 0;
  operations_.visit_open([&](const Operation& operation) {
    unnumbered += operation.awaits_number() ? 1 : 0;
    sums += operation.ring() ? operation.ring()->sums() : 0;
  });
  SHOAL_INVARIANT(unnumbered == unnumbered_);
  SHOAL_INVARIANT(sums == sums_.size());
  for (const auto& [number, of] : in_progress_) {
    const Operation* operation = operations_.find(of);
    SHOAL_INVARIANT(operation != nullptr && operation->transfer().number() == number);
    senders += operation->ring() ? 0 : senders_of(*operation);
  }
  SHOAL_INVARIANT(senders == senders_);
  for (const auto& [grant, bytes] : early_grants_) {
    SHOAL_INVARIANT(!in_progress_.contains(grant.first));
  }
}

}  // namespace shoal::worker
