// The blocks of one all-gather or all-to-all, on their way from worker to worker: docs/protocol/lifecycle.md.
//
// The receiver grants bytes, and the sender sends no more than was granted. The grants for a block add up to its size.
// Of each block:
//   moved ≤ granted ≤ range.size()
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/range.h"

namespace shoal::worker {

// A block that goes to or comes from one member.
class Block {
 public:
  explicit Block(Range range) : range_(range) {}

  const Range& range() const { return range_; }  // in the input or the output
  std::uint64_t granted() const { return granted_; }
  std::uint64_t moved() const { return moved_; }
  bool is_done() const { return moved_ == range_.size(); }

  // False: that would be more than the block.
  bool grant(std::uint64_t bytes);
  // The next bytes that were granted, at most so many; empty if there are none.
  Range next(std::uint64_t most) const;
  // Whether so many bytes at this offset of the block are next, and were granted.
  bool expects(std::uint64_t offset, std::uint64_t bytes) const;
  void move(std::uint64_t bytes) { moved_ += bytes; }
  // This rank's own, which goes nowhere.
  void move_all() { granted_ = moved_ = range_.size(); }

  void check_invariants() const;

 private:
  Range range_;
  std::uint64_t granted_ = 0;
  std::uint64_t moved_ = 0;
};

class BlockTransfer {
 public:
  // The number is known, the home's `exchange`. add_member() follows for each member, with its blocks.
  // `through_home`: a RESULT with everything follows, and no block moves.
  void begin(std::uint64_t number, bool through_home, std::size_t members);
  void add_member(Range incoming, Range outgoing);
  // An operation on the ring has a number and no blocks.
  void begin(std::uint64_t number) { number_ = number; }
  // A new epoch: what comes through the home comes again, through the new home.
  void restart();
  // The handle is done: only the number is kept.
  void forget_blocks();

  bool has_begun() const { return number_ != 0; }
  std::uint64_t number() const { return number_; }
  bool goes_through_home() const { return through_home_; }
  bool is_done() const;

  std::size_t members() const { return incoming_.size(); }
  Block& incoming(std::size_t member) { return incoming_[member]; }
  const Block& incoming(std::size_t member) const { return incoming_[member]; }
  Block& outgoing(std::size_t member) { return outgoing_[member]; }
  const Block& outgoing(std::size_t member) const { return outgoing_[member]; }

  void check_invariants() const;

 private:
  std::uint64_t number_ = 0;  // 0: not known yet
  bool through_home_ = false;
  std::vector<Block> incoming_;  // by member
  std::vector<Block> outgoing_;
};

}  // namespace shoal::worker
