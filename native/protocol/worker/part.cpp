#include "protocol/worker/part.h"

#include <algorithm>

#include "base/invariant.h"

namespace shoal::worker {

Part::Part(std::uint32_t server, Range shard, std::uint32_t segment, bool sends)
    : server_(server),
      shard_(shard),
      segment_(segment),
      missing_{{shard, sends, true}},
      sent_{0, shard.begin},
      answered_{0, shard.begin} {}

Cursor Part::next_to_send() const {
  Cursor at = sent_;
  while (at.index < missing_.size() && (!missing_[at.index].sends || at.offset >= missing_[at.index].range.end)) {
    ++at.index;
  }
  if (at.index < missing_.size()) {
    at.offset = std::max(at.offset, missing_[at.index].range.begin);
  }
  return at;
}

Cursor Part::next_to_answer() const {
  Cursor at = answered_;
  while (at.index + 1 < missing_.size() && at.offset >= missing_[at.index].range.end) {
    ++at.index;
  }
  if (at.index < missing_.size()) {
    at.offset = std::max(at.offset, missing_[at.index].range.begin);
  }
  return at;
}

Range Part::segment_at(const Cursor& cursor) const {
  if (cursor.index >= missing_.size()) {
    return {};
  }
  return {cursor.offset, std::min(cursor.offset + segment_, missing_[cursor.index].range.end)};
}

std::uint64_t Part::segments_sent() const {
  std::uint64_t segments = 0;
  for (std::size_t i = 0; i < missing_.size() && i <= sent_.index; ++i) {
    const Range& range = missing_[i].range;
    const std::uint64_t end = i < sent_.index ? range.end : sent_.offset;
    segments += (end - range.begin + segment_ - 1) / segment_;
  }
  return segments;
}

void Part::lengthen(std::uint32_t segment) {
  segment_ = segment;
  lengthened_ = true;
}

void Part::send(const Cursor& at, Range segment) {
  sent_ = {at.index, segment.end};
  unanswered_ += segment.size();
}

void Part::send_inline(std::uint32_t bytes) {
  eager_ = bytes;
  sent_.offset += bytes;
}

bool Part::expects(const wire::Header& result, Range wanted) const {
  const Cursor at = next_to_answer();
  if (at.index >= missing_.size()) {
    return false;
  }
  const Range segment = segment_at(at);
  const Range expected =
      missing_[at.index].receives ? intersection(segment, wanted) : Range{segment.begin, segment.begin};
  const bool contributed = !missing_[at.index].sends || Cursor{at.index, segment.end} <= sent_;
  const bool last = !resumed_ && segment.end == shard_.end;
  return contributed && result.length == expected.size() &&
         result.offset == (expected.empty() ? segment.begin : expected.begin) &&
         ((result.flags & wire::flag_last) != 0) == last;
}

Part::Answered Part::answer_next() {
  const Cursor at = next_to_answer();
  const Range segment = segment_at(at);
  // The first segment may have come inside the opening.
  const std::uint64_t bytes = missing_[at.index].sends && eager_ == 0 ? segment.size() : 0;
  unanswered_ -= bytes;
  answered_ = {at.index, segment.end};
  return {segment, bytes};
}

void Part::add_answered(RangeSet& ranges) const {
  if (done_) {
    ranges.add(shard_);
    return;
  }
  for (std::size_t i = 0; i < missing_.size() && i <= answered_.index; ++i) {
    const Range& range = missing_[i].range;
    ranges.add(i < answered_.index ? range : intersection(range, {0, answered_.offset}));
  }
}

void Part::resume(std::vector<wire::MissingRange> missing) {
  resumed_ = true;
  missing_ = std::move(missing);
  sent_ = answered_ = Cursor{};
  done_ = missing_.empty();
}

void Part::settle() {
  settled_ = true;
  results_.clear();
  // Nobody needs the rest of it, so the array is not the worker's any longer once the handle is done.
  sent_ = {missing_.size(), 0};
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
  const bool sends = answered_.index < missing_.size() && missing_[answered_.index].sends;
  SHOAL_INVARIANT(!sends || answered_ <= sent_);
  if (on_its_way() == 0) {
    return;
  }
  std::uint64_t between = 0;
  for (std::size_t i = answered_.index; i < missing_.size() && i <= sent_.index; ++i) {
    const Range& range = missing_[i].range;
    const std::uint64_t begin = i == answered_.index ? std::max(answered_.offset, range.begin) : range.begin;
    const std::uint64_t end = i < sent_.index ? range.end : sent_.offset;
    between += missing_[i].sends && begin < end ? end - begin : 0;
  }
  SHOAL_INVARIANT(on_its_way() <= between);
}

}  // namespace shoal::worker
