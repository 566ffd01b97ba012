#include "protocol/worker/ring.h"

#include <cstddef>
#include <cstdint>
#include <deque>

#include "check.h"

namespace {

using namespace shoal;
using worker::Ring;

constexpr std::uint64_t segment = 128;

// Carries a piece from one ring to the next, and credit back. Whether there was one.
bool carry(Ring& from, Ring& to) {
  const Range piece = from.next_to_send();
  if (piece.empty()) {
    return false;
  }
  CHECK(to.expects(from.sent(), piece.size()));
  from.send(piece.size());
  const Ring::Received received = to.receive();
  CHECK(received.piece == piece);
  to.place(piece.size());
  CHECK(from.grant(to.process()));
  from.check_invariants();
  to.check_invariants();
  return true;
}

void go_round(std::uint64_t bytes, std::size_t members) {
  std::deque<Ring> rings;
  for (std::size_t own = 0; own < members; ++own) {
    rings.emplace_back(bytes, members, own, segment);
  }
  for (std::size_t own = 0; own < members; ++own) {
    CHECK(rings[own].grant(rings[(own + 1) % members].first_grant(256)));
  }
  bool moves = true;
  while (moves) {
    moves = false;
    for (std::size_t own = 0; own < members; ++own) {
      moves = carry(rings[own], rings[(own + 1) % members]) || moves;
    }
  }
  for (const Ring& ring : rings) {
    CHECK(ring.is_done());
  }
}

TEST(rings_of_all_sizes_come_to_their_end_within_their_grants) {
  for (const std::size_t members : {2, 3, 5, 8}) {
    for (const std::uint64_t bytes : {1, 64, 100, 1000, 4096}) {
      go_round(bytes, members);
    }
  }
}

TEST(nothing_is_sent_that_was_not_granted_or_has_not_come) {
  Ring ring(256, 2, 0, segment);
  CHECK(ring.next_to_send().empty());
  CHECK(ring.grant(100) && ring.next_to_send().empty());
  CHECK(ring.grant(156) && !ring.grant(1));
  CHECK(ring.next_to_send() == (Range{0, 128}) && ring.sends_own());
  ring.send(128);
  CHECK(ring.next_to_send().empty());
  CHECK_EQ(ring.first_grant(1024), 256U);
  const Ring::Received received = ring.receive();
  CHECK(received.piece == (Range{128, 256}) && received.is_summed && received.is_last_sum);
  ring.place(128);
  ring.process();
  CHECK(ring.next_to_send() == (Range{128, 256}) && !ring.sends_own());
}

TEST(sums_that_end_in_another_order_count_in_the_order_of_their_pieces) {
  BufferPool pool{0};
  Ring ring(512, 2, 0, segment);
  CHECK_EQ(ring.first_grant(256), 256U);
  for (const Token token : {1, 2}) {
    CHECK(ring.receive().is_summed);
    ring.begin_sum(segment, pool.take(segment), token);
  }
  CHECK_EQ(ring.sums(), 2U);
  ring.end_sum(2);
  CHECK_EQ(ring.process(), 0U);
  ring.check_invariants();
  ring.end_sum(1);
  CHECK_EQ(ring.process(), 256U);
  CHECK_EQ(ring.sums(), 0U);
  ring.check_invariants();
}

TEST(a_piece_beyond_the_grant_is_not_expected) {
  Ring ring(512, 2, 0, segment);
  CHECK_EQ(ring.first_grant(100), 100U);
  CHECK_EQ(ring.first_grant(100), 0U);
  CHECK(!ring.expects(0, segment));
}

}  // namespace

RUN_TESTS()
