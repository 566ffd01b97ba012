#include "protocol/worker/block_transfer.h"

#include <algorithm>

#include "base/invariant.h"

namespace shoal::worker {

bool Block::grant(std::uint64_t bytes) {
  if (bytes > range_.size() - granted_) {
    return false;
  }
  granted_ += bytes;
  return true;
}

Range Block::next(std::uint64_t most) const {
  const std::uint64_t begin = range_.begin + moved_;
  return {begin, begin + std::min(most, granted_ - moved_)};
}

bool Block::expects(std::uint64_t offset, std::uint64_t bytes) const {
  return offset == moved_ && bytes <= granted_ - moved_;
}

void Block::check_invariants() const {
  SHOAL_INVARIANT(moved_ <= granted_);
  SHOAL_INVARIANT(granted_ <= range_.size());
}

void BlockTransfer::begin(std::uint64_t number, bool through_home, std::size_t members) {
  number_ = number;
  through_home_ = through_home;
  incoming_.reserve(members);
  outgoing_.reserve(members);
}

void BlockTransfer::add_member(Range incoming, Range outgoing) {
  incoming_.emplace_back(incoming);
  outgoing_.emplace_back(outgoing);
}

void BlockTransfer::restart() {
  if (through_home_) {
    *this = BlockTransfer{};
  }
}

void BlockTransfer::forget_blocks() {
  incoming_.clear();
  outgoing_.clear();
}

bool BlockTransfer::is_done() const {
  const auto all_done = [](const std::vector<Block>& blocks) {
    return std::all_of(blocks.begin(), blocks.end(), [](const Block& block) { return block.is_done(); });
  };
  return has_begun() && !through_home_ && all_done(incoming_) && all_done(outgoing_);
}

void BlockTransfer::check_invariants() const {
  SHOAL_INVARIANT(incoming_.size() == outgoing_.size());
  SHOAL_INVARIANT(has_begun() || (incoming_.empty() && !through_home_));
  for (const Block& block : incoming_) {
    block.check_invariants();
  }
  for (const Block& block : outgoing_) {
    block.check_invariants();
  }
}

}  // namespace shoal::worker
