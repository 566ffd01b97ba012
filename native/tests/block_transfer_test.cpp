#include "protocol/worker/block_transfer.h"

#include "base/invariant.h"
#include "check.h"

namespace {

using namespace shoal;
using worker::Block;
using worker::BlockTransfer;

TEST(a_block_is_granted_exactly_its_size) {
  Block block({100, 200});
  CHECK(block.grant(60));
  CHECK(!block.grant(41));
  CHECK(block.grant(40));
  CHECK(!block.grant(1));
  CHECK_EQ(block.granted(), 100U);
  block.check_invariants();
}

TEST(only_what_was_granted_moves_in_pieces) {
  Block block({100, 200});
  CHECK(block.next(64).empty());
  CHECK(block.grant(100));
  CHECK(block.next(64) == (Range{100, 164}));
  block.move(64);
  CHECK(block.next(64) == (Range{164, 200}) && !block.is_done());
  block.move(36);
  CHECK(block.is_done());
  block.check_invariants();
}

TEST(data_that_is_not_next_or_was_not_granted_is_not_expected) {
  Block block({0, 100});
  CHECK(block.grant(50));
  CHECK(block.expects(0, 50) && !block.expects(0, 51) && !block.expects(1, 10));
  block.move(50);
  CHECK(!block.expects(50, 1));
}

TEST(a_block_that_moved_further_than_it_was_granted_violates_its_invariant) {
  Block block({0, 100});
  block.move(1);
  bool violated = false;
  try {
    block.check_invariants();
  } catch (const InvariantViolated&) {
    violated = true;
  }
  CHECK(violated);
}

TEST(a_transfer_is_done_when_all_blocks_have_moved_both_ways) {
  BlockTransfer transfer;
  CHECK(!transfer.has_begun() && !transfer.is_done());
  transfer.begin(7, false, 2);
  transfer.add_member({0, 8}, {0, 8});
  transfer.add_member({8, 24}, {0, 8});
  transfer.incoming(0).move_all();
  transfer.outgoing(0).move_all();
  transfer.incoming(1).move_all();
  CHECK(!transfer.is_done());
  transfer.outgoing(1).move_all();
  CHECK(transfer.is_done());
  transfer.check_invariants();
}

TEST(in_a_new_epoch_what_goes_through_the_home_begins_anew_and_blocks_go_on) {
  BlockTransfer through_home;
  through_home.begin(7, true, 1);
  through_home.add_member({0, 0}, {0, 0});
  CHECK(!through_home.is_done());
  through_home.restart();
  CHECK(!through_home.has_begun());
  BlockTransfer blocks;
  blocks.begin(7, false, 1);
  blocks.add_member({0, 8}, {0, 8});
  blocks.restart();
  CHECK_EQ(blocks.number(), 7U);
}

}  // namespace

RUN_TESTS()
