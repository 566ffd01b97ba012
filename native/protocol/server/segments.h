// How a server's shard of one operation is averaged: cut into segments, each gathered from its contributors, summed,
// and answered in order. Where members have results from an epoch before, only the ranges that somebody lacks are cut.
//
// A segment is gathered (contributions come), summed elsewhere (from take() to finish()), then answered:
//
//   next_result() <= number of every segment that is gathered or waits for one before it < count();
//   a gathered segment has at least one contribution and not all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/range.h"
#include "wire/opening.h"

namespace shoal::server {

// One member's part of a segment, in memory of the server's.
struct Contribution {
  Buffer buffer;
  const std::byte* data = nullptr;  // inside buffer
  std::uint32_t credit = 0;         // bytes of credit it was sent under; 0 for inline data
};

struct Segment {
  Range range;
  std::vector<Contribution> contributions;  // by member; none: there is nothing to sum
  std::size_t arrived = 0;
};

// A range of a shard that some members lack. Within it every member has all or nothing.
struct MissingRange {
  Range range;
  std::optional<std::size_t> source;  // a member that has the result and sends it; none: nobody has, so it is summed
  bool needs_data = true;             // false: nobody lacks bytes; some members only have to hear that it is over
  std::vector<bool> receives;         // by member: it lacks the answer
};

class Segments {
 public:
  // None.
  Segments() = default;
  // Of a shard, from its start. `attributes`: any member's opening.
  Segments(const wire::Opening& attributes, std::size_t members, Range shard, std::uint32_t segment);
  // Of the ranges that are missing of a shard.
  Segments(const wire::Opening& attributes, std::size_t members, const std::vector<MissingRange>& missing,
           std::uint32_t segment);

  std::uint64_t count() const { return count_; }
  std::uint32_t segment_bytes() const { return segment_; }
  bool is_resumed() const { return resumed_; }
  Range range(std::uint64_t number) const;
  // Whether nobody sends anything for the segment, though somebody is answered.
  bool is_idle(std::uint64_t number) const { return resumed_ && !missing_[number].needs_data; }
  // Whether the member's DATA is a part of the segment; how many members' is.
  bool contributes(std::size_t member, std::uint64_t number) const;
  std::size_t contributors(std::uint64_t number) const;
  // Whether the member is sent a result for the segment, with or without bytes.
  bool is_answered(std::size_t member, std::uint64_t number) const;
  // Of a resumed operation: whether the member lacks the segment.
  bool receives(std::size_t member, std::uint64_t number) const { return missing_[number].receives[member]; }

  // Whether the member has a segment to send, and the range of the next one.
  bool owes(std::size_t member) const { return member < next_.size() && next_[member] < count_; }
  Range owed(std::size_t member) const { return owes(member) ? range(next_[member]) : Range{}; }
  // Whether the next result waits for what the member owes.
  bool holds_up(std::size_t member) const;
  // Its next contribution has come. Returns the number of its segment.
  std::uint64_t advance(std::size_t member);

  // True: the segment is complete, and to be taken.
  bool add(std::uint64_t number, std::size_t member, Contribution contribution);
  Segment take(std::uint64_t number);
  // The segment is summed. Earlier ones may not be, so results are taken while has_result().
  void finish(std::uint64_t number, Segment segment) { summed_.emplace(number, std::move(segment)); }
  bool has_result() const { return !summed_.empty() && summed_.begin()->first == next_result_; }
  std::uint64_t next_result() const { return next_result_; }
  Segment take_result();
  // The next result in order, which was summed at once: stands for finish() and take_result().
  void pass_result() { ++next_result_; }
  bool all_answered() const { return next_result_ == count_; }

  // Of the first `segments` segments, which all members have: how many are answers to `member`.
  std::uint64_t settled_for(std::size_t member, std::uint64_t segments);

  // Nothing more is answered. Returns what has come and has no answer.
  std::vector<Segment> take_all();

  // Adds the credit of all contributions here to that of their members' ranks.
  void add_credit(const std::vector<std::uint32_t>& ranks, std::vector<std::uint64_t>& by_rank) const;
  void check_invariants() const;

 private:
  // The first segment from `number` on that the member contributes to.
  std::uint64_t next_of(std::size_t member, std::uint64_t number) const;
  void find_first();
  // Whether nothing is summed for the segment: one member sends the result, or nobody sends anything.
  bool is_handed_on(std::uint64_t number) const;

  Collective collective_ = Collective::none;
  std::uint32_t root_ = 0;
  std::size_t members_ = 0;
  Range shard_;
  std::uint32_t segment_ = 0;  // bytes
  std::uint64_t count_ = 0;
  bool resumed_ = false;
  std::vector<MissingRange> missing_;  // if resumed: the segments, by number

  std::vector<std::uint64_t> next_;            // by member: the segment that its next DATA is for
  std::map<std::uint64_t, Segment> gathered_;  // by number
  std::map<std::uint64_t, Segment> summed_;    // waiting for an earlier segment
  std::uint64_t next_result_ = 0;
  std::uint64_t settled_ = 0;               // segments that are counted in settled_for_
  std::vector<std::uint64_t> settled_for_;  // by member, if resumed: how many of these are answers to it
};

}  // namespace shoal::server
