// Blocks of all-gather and all-to-all, from worker to worker: docs/protocol/lifecycle.md, Collectives.
//
// The receiver grants, the sender sends within what was granted, and the grants for a block add up to exactly its size.
// No exchange waits for another.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "protocol/collectives.h"
#include "protocol/worker/impl.h"

namespace shoal {

using wire::Header;
using wire::Type;
using worker::refused;

namespace {

// Which server gave this number.
std::uint64_t server_of(std::uint64_t exchange) { return (exchange >> 40) - 1; }

// More than any output can have; what is added up below it does not overflow.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 62;

}  // namespace

namespace worker {

bool Exchange::done() const {
  const auto all_done = [](const std::vector<Block>& blocks) {
    return std::all_of(blocks.begin(), blocks.end(), [](const Block& block) { return block.done(); });
  };
  return sizes_known && all_done(incoming) && all_done(outgoing);
}

}  // namespace worker

Status Worker::Impl::receive_sizes(std::uint64_t number, const LinkState& link) {
  wire::Sizes sizes;
  const wire::ConstBytes payload(link.payload.data(), link.payload.size());
  if (Status status = wire::decode(payload, sizes); !status.ok()) {
    return status;
  }
  Operation* operation = find(number);
  const std::uint64_t server = server_of(sizes.exchange);
  const bool next = server == link.index && sizes.exchange > servers_[server].exchange_heard;
  // One that was open in an epoch before keeps the number that it had.
  const bool again = server < servers_.size() && epoch_ > 0 && (operation == nullptr || operation->reopened);
  if (!next && !again) {
    return refused("SIZES with exchange " + std::to_string(sizes.exchange) + ", which is not its next");
  }
  servers_[server].exchange_heard = std::max(servers_[server].exchange_heard, sizes.exchange);
  if (operation == nullptr || operation->failed_here) {
    forget_grants(sizes.exchange);
    return {};
  }
  const std::size_t blocks = takes_ring(*operation) ? 0 : operation->group->ranks.size();
  const bool expected = (operation->gathers() || takes_ring(*operation)) && !operation->exchange.sizes_known &&
                        sizes.blocks.size() == blocks;
  if (!expected) {
    return refused("unexpected SIZES for '" + operation->name() + "'");
  }
  const bool was_unsized = unsized(*operation);
  Status status = takes_ring(*operation)
                      ? start_ring(*operation, sizes.exchange)
                      : start_exchange(*operation, sizes, (link.header.flags & wire::flag_inline) != 0);
  if (was_unsized) {
    sized();
  }
  return status;
}

// With the last of them it is clear again which exchanges have ended here.
void Worker::Impl::sized() {
  if (--unsized_ == 0) {
    std::erase_if(early_grants_, [this](const auto& entry) { return heard(entry.first.first); });
  }
}

Status Worker::Impl::start_exchange(Operation& operation, const wire::Sizes& sizes, bool through_home) {
  Submission& s = operation.submission;
  worker::Exchange& exchange = operation.exchange;
  const std::size_t members = sizes.blocks.size();
  const std::size_t own = operation.group->own;
  exchange.id = sizes.exchange;
  exchange.sizes_known = true;
  exchange.through_home = through_home;
  exchange.incoming.resize(members);
  exchange.outgoing.resize(members);
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < members; ++i) {
    if (sizes.blocks[i] > most_bytes - in) {
      return refused("SIZES for '" + operation.name() + "' with more bytes than there can be");
    }
    exchange.incoming[i].range = {in, in + sizes.blocks[i]};
    in += sizes.blocks[i];
    const bool gather = s.collective == Collective::all_gather;
    const std::uint64_t sent = gather ? s.input_bytes : static_cast<std::uint64_t>(s.splits[i]);
    exchange.outgoing[i].range = {out, out + sent};
    out += gather ? 0 : sent;
  }
  operation.wanted = {0, in};
  operation.progress = now_;
  if (exchange.incoming[own].range.size() != exchange.outgoing[own].range.size()) {
    return refused("SIZES for '" + operation.name() + "' with a wrong size of this rank's own block");
  }
  std::string problem;
  if (s.output == nullptr) {
    s.output = world_.allocate_output(s.handle, sizes.blocks);
    s.output_bytes = in;
    problem = s.output == nullptr && in > 0 ? "for which there is no memory" : "";
  } else if (s.output_bytes != in) {
    problem = "but its output has " + std::to_string(s.output_bytes);
  }
  if (!problem.empty()) {
    Status why = Status::error(Code::failed_on_rank,
                               "'" + operation.name() + "' on " + rank_text(rank_, config_) + " receives " +
                                   std::to_string(in) + " bytes, " + problem,
                               static_cast<std::int32_t>(rank_));
    send_to_server(operation.home, {.type = Type::fail, .operation = operation.number},
                   wire::encode(wire::Failure{why}));
    why.message = std::string(name_of(s.collective)) + " " + why.message;
    forget_grants(sizes.exchange);
    end(operation, why);
    return {};
  }
  answered_eager(operation.parts.front());
  if (through_home) {
    return {};
  }
  exchanges_.emplace(exchange.id, operation.number);
  Block& from = exchange.outgoing[own];
  Block& to = exchange.incoming[own];
  if (from.range.size() > 0) {
    std::memmove(s.output + to.range.begin, s.input + from.range.begin, from.range.size());
  }
  from.granted = from.moved = from.range.size();
  to.granted = to.moved = to.range.size();
  for (std::size_t i = 0; i < members; ++i) {
    const auto early = early_grants_.find({exchange.id, operation.group->ranks[i]});
    if (early != early_grants_.end()) {
      if (early->second > exchange.outgoing[i].range.size()) {
        return refused("GRANT beyond the block of '" + operation.name() + "'");
      }
      exchange.outgoing[i].granted = early->second;
    }
  }
  forget_grants(exchange.id);
  for (std::size_t step = 1; step < members; ++step) {
    start_blocks(operation, (own + step) % members);
  }
  end_exchange_if_done(operation);
  return {};
}

// Makes the link if it is needed and this rank's to make; then grants and sends.
void Worker::Impl::start_blocks(Operation& operation, std::size_t member) {
  const std::uint32_t rank = operation.group->ranks[member];
  const bool needed =
      operation.ring
          ? rank == ring_neighbour(operation, 1) || rank == ring_neighbour(operation, operation.group->ranks.size() - 1)
          : !operation.exchange.incoming[member].range.empty() || !operation.exchange.outgoing[member].range.empty();
  if (!needed) {
    return;
  }
  worker::PeerLink& peer = peers_[rank];
  if (!peer.link) {
    if (rank_ < rank && !peer.connecting) {
      peer.connecting = true;
      world_.connect(rank);
    }
    return;
  }
  if (operation.ring) {
    start_ring_link(operation, rank);
    return;
  }
  Block& incoming = operation.exchange.incoming[member];
  if (incoming.granted == 0 && !incoming.range.empty()) {
    incoming.granted = std::min<std::uint64_t>(config_.credit, incoming.range.size());
    send_to_peer(rank, {.type = Type::grant,
                        .operation = operation.exchange.id,
                        .credit = static_cast<std::uint32_t>(incoming.granted)});
  }
  pump_block(operation, member);
}

void Worker::Impl::pump_block(Operation& operation, std::size_t member) {
  Block& block = operation.exchange.outgoing[member];
  const std::uint32_t rank = operation.group->ranks[member];
  while (block.moved < block.granted && peers_[rank].link) {
    const std::uint64_t length = std::min<std::uint64_t>(config_.segment, block.granted - block.moved);
    const std::byte* data = operation.submission.input + block.range.begin + block.moved;
    const Header header{.type = Type::data,
                        .dtype = operation.submission.dtype,
                        .operation = operation.exchange.id,
                        .offset = block.moved};
    block.moved += length;
    note_sending(operation);
    ++operation.unsent;
    send_to_peer(rank, header, {data, static_cast<std::size_t>(length)}, operation.number);
  }
}

Status Worker::Impl::check_peer_header(const LinkState& link, const Header& header) {
  const Operation* operation = exchanging(header.operation);
  switch (header.type) {
    case Type::grant:
      return header.length == 0 ? Status{} : refused("GRANT with a payload");
    case Type::data: {
      if (header.length == 0 || header.length > config_.segment) {
        return refused("DATA of " + std::to_string(header.length) + " bytes between nodes");
      }
      if (operation == nullptr) {
        return heard(header.operation) ? Status{} : refused("DATA of an exchange that was not granted");
      }
      const std::optional<std::size_t> member = operation->group->index_of(link.index);
      if (!member || header.dtype != operation->submission.dtype) {
        return refused("DATA that is not part of '" + operation->name() + "'");
      }
      if (operation->ring) {
        return check_ring_data(*operation, link.index, header);
      }
      const Block& block = operation->exchange.incoming[*member];
      if (header.offset != block.moved || header.offset + header.length > block.granted) {
        return refused("DATA of '" + operation->name() + "' that was not granted");
      }
      return {};
    }
    default:
      return refused(std::string(wire::name_of(header.type)) + " between nodes");
  }
}

Status Worker::Impl::receive_from_peer(LinkState& link) {
  if (link.header.type == Type::grant) {
    return receive_grant(link.index, link.header);
  }
  receive_block(link.index, link);
  return {};
}

Status Worker::Impl::receive_grant(std::uint32_t rank, const Header& header) {
  Operation* operation = exchanging(header.operation);
  if (operation == nullptr) {
    if (server_of(header.operation) >= servers_.size()) {
      return refused("GRANT for an exchange of no server");
    }
    if (!heard(header.operation) || unsized_ > 0) {
      early_grants_[{header.operation, rank}] += header.credit;
      // As many as the peer may have open, each granted once before it gets data; and some that have ended.
      const std::size_t of_peer = config_.tables.open / sizeof(Operation) + 1;
      const std::size_t most = (unsized_ > 0 ? 4 : 1) * of_peer * config_.size();
      if (early_grants_.size() > most) {
        return refused("too many grants for exchanges that have not begun");
      }
    }
    return {};
  }
  const std::optional<std::size_t> member = operation->group->index_of(rank);
  if (!member) {
    return refused("GRANT that is not part of '" + operation->name() + "'");
  }
  if (operation->ring) {
    return receive_ring_grant(*operation, rank, header.credit);
  }
  Block& block = operation->exchange.outgoing[*member];
  if (header.credit > block.range.size() - block.granted) {
    return refused("GRANT beyond the block of '" + operation->name() + "'");
  }
  block.granted += header.credit;
  pump_block(*operation, *member);
  return {};
}

void Worker::Impl::receive_block(std::uint32_t rank, LinkState& link) {
  Operation* operation = exchanging(link.header.operation);
  if (operation == nullptr) {
    return;  // ended in the meantime
  }
  if (operation->ring) {
    receive_ring_data(*operation, link);
    return;
  }
  const std::size_t member = *operation->group->index_of(rank);
  Block& block = operation->exchange.incoming[member];
  const std::uint64_t length = link.header.length;
  std::memcpy(operation->submission.output + block.range.begin + block.moved, link.payload.data(), length);
  block.moved += length;
  operation->progress = now_;
  const std::uint64_t more = std::min(length, block.range.size() - block.granted);
  if (more > 0) {
    block.granted += more;
    send_to_peer(
        rank, {.type = Type::grant, .operation = operation->exchange.id, .credit = static_cast<std::uint32_t>(more)});
  }
  end_exchange_if_done(*operation);
}

// The coordinator would have declared it lost if it had not left. What it sent before it left has not come, and never
// will.
bool Worker::Impl::fail_exchanges_with(std::uint32_t rank) {
  bool found = false;
  for (const auto& [exchange, number] : exchanges_) {
    const Operation& operation = *find(number);
    const std::optional<std::size_t> member = operation.group->index_of(rank);
    const bool lacks = member && (operation.ring ? rank == ring_neighbour(operation, operation.group->ranks.size() - 1)
                                                 : !operation.exchange.incoming[*member].done());
    if (!lacks) {
      continue;
    }
    found = true;
    const Status why =
        Status::error(Code::peer_lost,
                      "'" + operation.name() + "' needs what " + rank_text(rank, config_) +
                          " sent: its connection to " + rank_text(rank_, config_) + " ended before all of it had come",
                      static_cast<std::int32_t>(rank));
    send_to_server(operation.home, {.type = Type::fail, .operation = number}, wire::encode(wire::Failure{why}));
  }
  return found;
}

void Worker::Impl::end_exchange_if_done(Operation& operation) {
  if (operation.exchange.done() && operation.unsent == 0) {
    operation.parts.front().done = true;
    end_if_done(operation);
  }
}

Worker::Impl::Operation* Worker::Impl::exchanging(std::uint64_t exchange) {
  const auto found = exchanges_.find(exchange);
  return found == exchanges_.end() ? nullptr : find(found->second);
}

// Nobody will ask for them any more: the exchange has begun here, or has ended before it could.
void Worker::Impl::forget_grants(std::uint64_t exchange) {
  early_grants_.erase(early_grants_.lower_bound({exchange, 0}), early_grants_.lower_bound({exchange + 1, 0}));
}

// Whether its home has already told its sizes: if it is not in progress now, it has ended.
bool Worker::Impl::heard(std::uint64_t exchange) const {
  const std::uint64_t server = server_of(exchange);
  return server < servers_.size() && exchange <= servers_[server].exchange_heard;
}

void Worker::Impl::send_to_peer(std::uint32_t rank, Header header, std::span<const std::byte> borrowed, Token token) {
  header.length = static_cast<std::uint32_t>(borrowed.size());
  if (peers_[rank].link) {
    world_.send(*peers_[rank].link, header, {}, borrowed, token);
  }
}

}  // namespace shoal
