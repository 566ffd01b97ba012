// What one server does for an operation: what is missing of its shard. That is all of it, or less after a server was
// lost. Each missing range is cut into segments from its begin; segments are sent and answered in ascending order.
//
//   answered ≤ sent, where this rank sends
//   eager + unanswered ≤ the bytes that this rank sends between the two
//   stagger < segment
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/range.h"
#include "protocol/worker/retained_results.h"
#include "wire/epoch.h"
#include "wire/frame.h"

namespace shoal::worker {

// A position in what is missing: the ranges before `index`, and what is below `offset` in that one, are done.
struct Cursor {
  std::size_t index = 0;
  std::uint64_t offset = 0;

  friend auto operator<=>(const Cursor&, const Cursor&) = default;
};

class Part {
 public:
  Part(std::uint32_t server, Range shard, std::uint32_t segment, bool sends);
  Part(Part&&) noexcept = default;
  Part& operator=(Part&&) noexcept = default;

  std::uint32_t server() const { return server_; }
  const Range& shard() const { return shard_; }
  std::uint32_t segment() const { return segment_; }

  // Sending. next_to_send(): where the next bytes are that this rank sends. segment_at(): the segment there; empty at
  // the end.
  Cursor next_to_send() const;
  Range segment_at(const Cursor& cursor) const;
  bool all_sent() const { return segment_at(next_to_send()).empty(); }
  std::uint64_t segments_sent() const;
  std::uint64_t bytes_sent() const { return next_to_send().offset - shard_.begin; }  // with what is skipped
  void send(const Cursor& at, Range segment);
  // The first bytes, inside the opening.
  void send_inline(std::uint32_t bytes);
  // Bytes of DATA, and of inline data, without an answer.
  std::uint64_t unanswered() const { return unanswered_; }
  std::uint32_t eager() const { return eager_; }
  std::uint64_t on_its_way() const { return unanswered_ + eager_; }

  // Answers. A function that returns a number returns how many bytes it answers.
  // Whether this RESULT is of the next segment. `wanted`: what this rank gets of the operation.
  bool expects(const wire::Header& result, Range wanted) const;
  struct Answered {
    Range segment;
    std::uint64_t bytes = 0;  // of DATA
  };
  Range next_answer() const { return segment_at(next_to_answer()); }
  Answered answer_next();
  std::uint32_t answer_inline() { return std::exchange(eager_, 0); }
  std::uint64_t answer_all() { return std::exchange(unanswered_, 0); }
  // What has been answered, of the ranges that this server had.
  void add_answered(RangeSet& ranges) const;

  // In its server's order: the server asks for this rank's contribution.
  bool is_admitted() const { return admitted_; }
  void admit() { admitted_ = true; }
  // Its segments are full ones, of so many bytes, though the operation is short. Nothing has been sent.
  void lengthen(std::uint32_t segment);
  bool is_lengthened() const { return lengthened_; }
  bool has_sent_nothing() const { return eager_ == 0 && sent_ == Cursor{0, shard_.begin}; }
  // Of one that was open in an epoch before: the server has said what is missing.
  bool is_resumed() const { return resumed_; }
  void resume(std::vector<wire::MissingRange> missing);
  // Every result is here.
  bool is_done() const { return done_; }
  void finish() { done_ = true; }
  // After a RESULT: whether it was the last, as the server says of one that is not resumed.
  void finish_if_last(bool last) { done_ = resumed_ ? next_answer().empty() : last; }
  // All members have what they get from this server.
  bool is_settled() const { return settled_; }
  void settle();
  // The home alone keeps something of an operation that has failed.
  void fail(bool is_home);

  // In step (docs/protocol/lifecycle.md, "Windows"): its server is a reference server, or this part follows the
  // reference servers and may be `stagger` bytes ahead of them.
  bool is_reference() const { return is_reference_; }
  bool follows_reference() const { return follows_reference_; }
  std::uint32_t stagger() const { return stagger_; }
  void set_reference(bool is_reference) { is_reference_ = is_reference; }
  void follow_reference(bool follows, std::uint32_t stagger);

  // Results that others may lack.
  RetainedResults& results() { return results_; }
  const RetainedResults& results() const { return results_; }

  void check_invariants() const;

 private:
  Cursor next_to_answer() const;

  std::uint32_t server_;
  Range shard_;
  std::uint32_t segment_;  // bytes
  std::vector<wire::MissingRange> missing_;
  Cursor sent_;
  Cursor answered_;
  std::uint32_t eager_ = 0;
  std::uint64_t unanswered_ = 0;
  bool is_reference_ = false;
  bool follows_reference_ = false;
  std::uint32_t stagger_ = 0;
  bool lengthened_ = false;
  bool admitted_ = false;
  bool resumed_ = false;
  bool done_ = false;
  bool settled_ = false;
  RetainedResults results_;
};

}  // namespace shoal::worker
