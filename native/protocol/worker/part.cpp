#include "protocol/worker/part.h"

#include <algorithm>

#include "base/invariant.h"

namespace shoal::worker {

Part::Part(std::uint32_t server, Range shard, std::uint32_t segment, bool sends)
    : server_(server),
      shard_(shard),
      segment_(segment),
      runs_{{shard, sends, true}},
      sent_{0, shard.begin},
      answered_{0, shard.begin} {}

Cursor Part::next_to_send() const {
  Cursor at = sent_;
  while (at.run < runs_.size() && (!runs_[at.run].sends || at.offset >= runs_[at.run].range.end)) {
    ++at.run;
  }
  if (at.run < runs_.size()) {
    at.offset = std::max(at.offset, runs_[at.run].range.begin);
  }
  return at;
}

Cursor Part::next_to_answer() const {
  Cursor at = answered_;
  while (at.run + 1 < runs_.size() && at.offset >= runs_[at.run].range.end) {
    ++at.run;
  }
  if (at.run < runs_.size()) {
    at.offset = std::max(at.offset, runs_[at.run].range.begin);
  }
  return at;
}

Range Part::segment_at(const Cursor& cursor) const {
  if (cursor.run >= runs_.size()) {
    return {};
  }
  return {cursor.offset, std::min(cursor.offset + segment_, runs_[cursor.run].range.end)};
}

std::uint64_t Part::segments_sent() const {
  std::uint64_t segments = 0;
  for (std::size_t run = 0; run < runs_.size() && run <= sent_.run; ++run) {
    const Range& range = runs_[run].range;
    const std::uint64_t end = run < sent_.run ? range.end : sent_.offset;
    segments += (end - range.begin + segment_ - 1) / segment_;
  }
  return segments;
}

void Part::send(const Cursor& at, Range segment) {
  sent_ = {at.run, segment.end};
  unanswered_ += segment.size();
}

void Part::send_inline(std::uint32_t bytes) {
  eager_ = bytes;
  sent_.offset += bytes;
}

bool Part::expects(const wire::Header& result, Range wanted) const {
  const Cursor at = next_to_answer();
  if (at.run >= runs_.size()) {
    return false;
  }
  const Range segment = segment_at(at);
  const Range expected = runs_[at.run].receives ? intersection(segment, wanted) : Range{segment.begin, segment.begin};
  const bool contributed = !runs_[at.run].sends || Cursor{at.run, segment.end} <= sent_;
  const bool last = !resumed_ && segment.end == shard_.end;
  return contributed && result.length == expected.size() &&
         result.offset == (expected.empty() ? segment.begin : expected.begin) &&
         ((result.flags & wire::flag_last) != 0) == last;
}

Part::Answered Part::answer_next() {
  const Cursor at = next_to_answer();
  const Range segment = segment_at(at);
  // The first segment may have come inside the opening.
  const std::uint64_t bytes = runs_[at.run].sends && eager_ == 0 ? segment.size() : 0;
  unanswered_ -= bytes;
  answered_ = {at.run, segment.end};
  return {segment, bytes};
}

void Part::add_answered(RangeSet& ranges) const {
  if (done_) {
    ranges.add(shard_);
    return;
  }
  for (std::size_t run = 0; run < runs_.size() && run <= answered_.run; ++run) {
    const Range& range = runs_[run].range;
    ranges.add(run < answered_.run ? range : intersection(range, {0, answered_.offset}));
  }
}

void Part::resume(std::vector<wire::Run> runs) {
  resumed_ = true;
  runs_ = std::move(runs);
  sent_ = answered_ = Cursor{};
  done_ = runs_.empty();
}

void Part::settle() {
  settled_ = true;
  results_.clear();
  // Nobody needs the rest of it, so the array is not the worker's any longer once the handle is done.
  sent_ = {runs_.size(), 0};
}

void Part::fail(bool is_home) {
  results_.clear();
  settled_ = !is_home;
}

void Part::follow_reference(bool follows, std::uint32_t stagger) {
  follows_reference_ = follows;
  stagger_ = stagger;
}

void Part::check_invariants() const {
  SHOAL_INVARIANT(stagger_ < segment_);
  SHOAL_INVARIANT(!settled_ || results_.empty());
  results_.check_invariants();
  const bool sends = answered_.run < runs_.size() && runs_[answered_.run].sends;
  SHOAL_INVARIANT(!sends || answered_ <= sent_);
  if (on_its_way() == 0) {
    return;
  }
  std::uint64_t between = 0;
  for (std::size_t run = answered_.run; run < runs_.size() && run <= sent_.run; ++run) {
    const Range& range = runs_[run].range;
    const std::uint64_t begin = run == answered_.run ? std::max(answered_.offset, range.begin) : range.begin;
    const std::uint64_t end = run < sent_.run ? range.end : sent_.offset;
    between += runs_[run].sends && begin < end ? end - begin : 0;
  }
  SHOAL_INVARIANT(on_its_way() <= between);
}

}  // namespace shoal::worker
