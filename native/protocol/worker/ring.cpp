#include "protocol/worker/ring.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/invariant.h"
#include "protocol/sharding.h"

namespace shoal::worker {

Ring::Ring(std::uint64_t bytes, std::size_t members, std::size_t own, std::uint64_t segment)
    : segment_(segment), sum_steps_(members - 1) {
  const std::vector<std::uint32_t> equal(members, 1);
  for (std::size_t step = 0; step < 2 * (members - 1); ++step) {
    outgoing_.add(shard_of(bytes, equal, (own + 2 * members - step) % members));
    incoming_.add(shard_of(bytes, equal, (own + 2 * members - step - 1) % members));
  }
  outgoing_.skip_empty();
  incoming_.skip_empty();
}

void Ring::Stream::add(Range chunk) {
  chunks.push_back(chunk);
  bytes += chunk.size();
}

Range Ring::Stream::next(std::uint64_t most) const {
  const Range& chunk = chunks[step];
  return {chunk.begin + offset, std::min(chunk.begin + offset + most, chunk.end)};
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

bool Ring::grant(std::uint64_t bytes) {
  if (bytes > outgoing_.bytes - may_send_) {
    return false;
  }
  may_send_ += bytes;
  return true;
}

Range Ring::next_to_send() const {
  if (outgoing_.moved == outgoing_.bytes) {
    return {};
  }
  const Range piece = outgoing_.next(segment_);
  const std::uint64_t ready = outgoing_.chunks[0].size() + processed_;
  return outgoing_.moved + piece.size() <= std::min(may_send_, ready) ? piece : Range{};
}

std::uint64_t Ring::first_grant(std::uint64_t most) {
  if (granted_ > 0) {
    return 0;
  }
  granted_ = std::min({most, incoming_.bytes, std::uint64_t{std::numeric_limits<std::uint32_t>::max()}});
  return granted_;
}

bool Ring::expects(std::uint64_t offset, std::uint64_t bytes) const {
  return incoming_.moved < incoming_.bytes && offset == incoming_.moved && bytes == incoming_.next(segment_).size() &&
         offset + bytes <= granted_;
}

Ring::Received Ring::receive() {
  const Received received{incoming_.next(segment_), incoming_.step < sum_steps_, incoming_.step + 1 == sum_steps_};
  incoming_.advance(received.piece.size());
  return received;
}

void Ring::place(std::uint64_t bytes) { pieces_.push_back({bytes, true, Buffer(), 0}); }

void Ring::begin_sum(std::uint64_t bytes, Buffer buffer, Token token) {
  pieces_.push_back({bytes, false, std::move(buffer), token});
}

void Ring::end_sum(Token token) {
  const auto piece =
      std::find_if(pieces_.begin(), pieces_.end(), [token](const Piece& one) { return one.token == token; });
  piece->done = true;
  piece->buffer = Buffer();
}

std::uint64_t Ring::process() {
  std::uint64_t credit = 0;
  while (!pieces_.empty() && pieces_.front().done) {
    processed_ += pieces_.front().bytes;
    credit += pieces_.front().bytes;
    pieces_.pop_front();
  }
  credit = std::min(credit, incoming_.bytes - granted_);
  granted_ += credit;
  return credit;
}

std::size_t Ring::sums() const {
  return static_cast<std::size_t>(
      std::count_if(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return !piece.done; }));
}

void Ring::check_invariants() const {
  SHOAL_INVARIANT(outgoing_.moved <= std::min(may_send_, outgoing_.chunks[0].size() + processed_));
  SHOAL_INVARIANT(may_send_ <= outgoing_.bytes);
  SHOAL_INVARIANT(processed_ <= incoming_.moved);
  SHOAL_INVARIANT(incoming_.moved <= granted_);
  SHOAL_INVARIANT(granted_ <= incoming_.bytes);
  std::uint64_t waiting = 0;
  for (const Piece& piece : pieces_) {
    waiting += piece.bytes;
  }
  SHOAL_INVARIANT(processed_ + waiting == incoming_.moved);
}

}  // namespace shoal::worker
