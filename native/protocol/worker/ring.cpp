// The ring: all-reduce from worker to worker, 2(n-1)/n · M bytes on every link in each direction, in 2(n-1) steps.
//
// A worker sends one stream of bytes to the next member and receives one from the previous. Byte p of either stream
// belongs to a step, a chunk and an offset in it that both ends know:
//   outgoing  chunk(own), chunk(own-1), ..., chunk(own+3)   2(n-1) of them, indices modulo n
//   incoming  chunk(own-1), chunk(own-2), ..., chunk(own+2)
// What a worker sends after its own chunk is what it received, in the same order, one step later: in the first n-1
// steps after adding its own contribution (reduce-scatter), afterwards as it is (all-gather). So
//   sent ≤ min(may_send, size(chunk(own)) + processed)   and   processed ≤ received ≤ granted.
// Credit is the receiver's to give, as for blocks (block_transfer.cpp).
//
// Order of the sum of chunk c: members c, c+1, ..., c-1. Always the same, so the ring repeats to the bit with itself.
//
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); for
// gradients: Baidu, "Bringing HPC Techniques to Deep Learning" (2017).
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "protocol/worker/impl.h"

namespace shoal {

using wire::Header;
using wire::Type;
using worker::refused;

namespace worker {

Ring::Ring(std::uint64_t bytes, std::size_t members, std::size_t own) {
  const std::vector<std::uint32_t> equal(members, 1);
  for (std::size_t step = 0; step < 2 * (members - 1); ++step) {
    outgoing.chunks.push_back(shard_of(bytes, equal, (own + 2 * members - step) % members));
    incoming.chunks.push_back(shard_of(bytes, equal, (own + 2 * members - step - 1) % members));
  }
  reduce_steps = members - 1;
  for (const Range& chunk : incoming.chunks) {
    incoming.bytes += chunk.size();
  }
  for (const Range& chunk : outgoing.chunks) {
    outgoing.bytes += chunk.size();
  }
  outgoing.skip_empty();
  incoming.skip_empty();
}

Range Ring::Stream::next(std::uint64_t segment) const {
  const Range& chunk = chunks[step];
  return {chunk.begin + offset, std::min(chunk.begin + offset + segment, chunk.end)};
}

void Ring::Stream::advance(std::uint64_t count) {
  offset += count;
  moved += count;
  skip_empty();
}

void Ring::Stream::skip_empty() {
  while (step < chunks.size() && offset == chunks[step].size()) {
    ++step;
    offset = 0;
  }
}

bool Ring::done() const { return processed == incoming.bytes && outgoing.moved == outgoing.bytes; }

}  // namespace worker

Status Worker::Impl::start_ring(Operation& operation, std::uint64_t exchange) {
  operation.exchange.id = exchange;
  operation.exchange.sizes_known = true;
  operation.ring.emplace(operation.bytes, operation.group->ranks.size(), operation.group->own);
  operation.progress = now_;
  exchanges_.emplace(exchange, operation.number);
  const auto early = early_grants_.find({exchange, ring_neighbour(operation, 1)});
  if (early != early_grants_.end()) {
    if (early->second > operation.ring->outgoing.bytes) {
      return refused("GRANT beyond the stream of '" + operation.name() + "'");
    }
    operation.ring->may_send = early->second;
  }
  forget_grants(exchange);
  const std::size_t members = operation.group->ranks.size();
  start_blocks(operation, (operation.group->own + 1) % members);
  start_blocks(operation, (operation.group->own + members - 1) % members);
  return {};
}

std::uint32_t Worker::Impl::ring_neighbour(const Operation& operation, std::size_t distance) const {
  return operation.group->ranks[(operation.group->own + distance) % operation.group->ranks.size()];
}

// The link to `rank` is there: grants to the previous member, sends to the next. In a ring of two they are the same.
void Worker::Impl::start_ring_link(Operation& operation, std::uint32_t rank) {
  worker::Ring& ring = *operation.ring;
  if (rank == ring_neighbour(operation, operation.group->ranks.size() - 1) && ring.granted == 0) {
    // A server's port has the windows of all members to share out, and here is one sender alone.
    const std::uint64_t all = std::uint64_t{config_.credit} * operation.group->ranks.size();
    ring.granted = std::min({all, ring.incoming.bytes, std::uint64_t{std::numeric_limits<std::uint32_t>::max()}});
    send_to_peer(
        rank,
        {.type = Type::grant, .operation = operation.exchange.id, .credit = static_cast<std::uint32_t>(ring.granted)});
  }
  pump_ring(operation);
}

void Worker::Impl::pump_ring(Operation& operation) {
  worker::Ring& ring = *operation.ring;
  const std::uint32_t rank = ring_neighbour(operation, 1);
  while (peers_[rank].link && ring.outgoing.moved < ring.outgoing.bytes) {
    const Range piece = ring.outgoing.next(config_.segment);
    const std::uint64_t ready = ring.outgoing.chunks[0].size() + ring.processed;
    if (ring.outgoing.moved + piece.size() > std::min(ring.may_send, ready)) {
      return;
    }
    // The own chunk is the contribution, everything after it came by.
    const std::byte* from = ring.outgoing.step == 0 ? operation.submission.input : operation.submission.output;
    const Header header{.type = Type::data,
                        .dtype = operation.submission.dtype,
                        .operation = operation.exchange.id,
                        .offset = ring.outgoing.moved};
    ring.outgoing.advance(piece.size());
    note_sending(operation);
    ++operation.unsent;
    send_to_peer(rank, header, {from + piece.begin, static_cast<std::size_t>(piece.size())}, operation.number);
  }
}

Status Worker::Impl::check_ring_data(const Operation& operation, std::uint32_t rank, const Header& header) const {
  const worker::Ring& ring = *operation.ring;
  const bool expected = rank == ring_neighbour(operation, operation.group->ranks.size() - 1) &&
                        ring.incoming.moved < ring.incoming.bytes && header.offset == ring.incoming.moved &&
                        header.length == ring.incoming.next(config_.segment).size() &&
                        header.offset + header.length <= ring.granted;
  return expected ? Status{} : refused("DATA of '" + operation.name() + "' that is not the ring's next piece");
}

Status Worker::Impl::receive_ring_grant(Operation& operation, std::uint32_t rank, std::uint32_t credit) {
  worker::Ring& ring = *operation.ring;
  if (rank != ring_neighbour(operation, 1) || credit > ring.outgoing.bytes - ring.may_send) {
    return refused("GRANT that is not part of '" + operation.name() + "'");
  }
  ring.may_send += credit;
  pump_ring(operation);
  end_ring_if_done(operation);
  return {};
}

void Worker::Impl::receive_ring_data(Operation& operation, LinkState& link) {
  worker::Ring& ring = *operation.ring;
  const Range piece = ring.incoming.next(config_.segment);
  const bool reduces = ring.incoming.step < ring.reduce_steps;
  const bool last_sum = ring.incoming.step + 1 == ring.reduce_steps;
  ring.incoming.advance(piece.size());
  operation.progress = now_;
  std::byte* output = operation.submission.output + piece.begin;
  if (!reduces) {
    std::memcpy(output, link.payload.data(), piece.size());
    ring.pieces.push_back({piece.size(), true, Buffer(), 0});
    ring_processed(operation);
    return;
  }
  Sum sum;
  sum.destination = output;
  sum.sources = {link.payload.data(), operation.submission.input + piece.begin};
  sum.count = piece.size() / size_of(operation.submission.dtype);
  sum.dtype = operation.submission.dtype;
  // The mean is divided once, in the last step.
  sum.op = operation.submission.op == Operator::mean && !last_sum ? Operator::sum : operation.submission.op;
  const double members = static_cast<double>(operation.group->ranks.size());
  sum.divisor = operation.submission.divisor > 0 ? operation.submission.divisor : members;
  sum.token = next_sum_++;
  ring.pieces.push_back({piece.size(), false, std::move(link.payload), sum.token});
  summing_.emplace(sum.token, operation.number);
  world_.sum(std::move(sum));
}

void Worker::Impl::on_summed(Token token) {
  const auto summing = summing_.extract(token);
  Operation& operation = *find(summing.mapped());
  worker::Ring& ring = *operation.ring;
  const auto piece = std::find_if(ring.pieces.begin(), ring.pieces.end(),
                                  [token](const worker::Ring::Piece& one) { return one.token == token; });
  piece->done = true;
  piece->buffer = Buffer();
  if (operation.ending) {
    end(operation, *operation.ending);
    return;
  }
  ring_processed(operation);
}

// Pieces count in order, also when their sums end in another.
void Worker::Impl::ring_processed(Operation& operation) {
  worker::Ring& ring = *operation.ring;
  std::uint64_t credit = 0;
  while (!ring.pieces.empty() && ring.pieces.front().done) {
    ring.processed += ring.pieces.front().bytes;
    credit += ring.pieces.front().bytes;
    ring.pieces.pop_front();
  }
  credit = std::min(credit, ring.incoming.bytes - ring.granted);
  if (credit > 0) {
    ring.granted += credit;
    send_to_peer(
        ring_neighbour(operation, operation.group->ranks.size() - 1),
        {.type = Type::grant, .operation = operation.exchange.id, .credit = static_cast<std::uint32_t>(credit)});
  }
  pump_ring(operation);
  end_ring_if_done(operation);
}

void Worker::Impl::end_ring_if_done(Operation& operation) {
  if (operation.ring->done() && operation.unsent == 0) {
    operation.parts.front().done = true;
    end_if_done(operation);
  }
}

}  // namespace shoal
