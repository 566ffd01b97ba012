#include "protocol/server/segments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::server {

Segments::Segments(const wire::Opening& attributes, std::size_t members, Range shard, std::uint32_t segment)
    : collective_(attributes.collective),
      root_(attributes.root),
      members_(members),
      shard_(shard),
      segment_(segment),
      count_(std::max<std::uint64_t>(1, (shard.size() + segment - 1) / segment)) {
  find_first();
}

Segments::Segments(const wire::Opening& attributes, std::size_t members, const std::vector<MissingRange>& missing,
                   std::uint32_t segment)
    : collective_(attributes.collective),
      root_(attributes.root),
      members_(members),
      segment_(segment),
      resumed_(true),
      settled_for_(members) {
  for (const MissingRange& whole : missing) {
    for (std::uint64_t begin = whole.range.begin; begin < whole.range.end; begin += segment) {
      const std::uint64_t end = std::min(begin + segment, whole.range.end);
      missing_.push_back({{begin, end}, whole.source, whole.needs_data, whole.receives});
    }
  }
  count_ = missing_.size();
  find_first();
}

void Segments::find_first() {
  for (std::size_t member = 0; member < members_; ++member) {
    next_.push_back(next_of(member, 0));
  }
}

Range Segments::range(std::uint64_t number) const {
  if (resumed_) {
    return missing_[number].range;
  }
  const std::uint64_t begin = shard_.begin + number * segment_;
  return {begin, std::min(begin + segment_, shard_.end)};
}

bool Segments::is_handed_on(std::uint64_t number) const {
  return resumed_ && (missing_[number].source || !missing_[number].needs_data);
}

bool Segments::contributes(std::size_t member, std::uint64_t number) const {
  return is_handed_on(number) ? missing_[number].source == member : shoal::contributes(collective_, member, root_);
}

std::size_t Segments::contributors(std::uint64_t number) const {
  if (is_handed_on(number)) {
    return missing_[number].needs_data ? 1 : 0;
  }
  return shoal::contributors(collective_, members_);
}

std::uint64_t Segments::next_of(std::size_t member, std::uint64_t number) const {
  if (!resumed_ && !shoal::contributes(collective_, member, root_)) {
    return count_;
  }
  while (number < count_ && !contributes(member, number)) {
    ++number;
  }
  return number;
}

bool Segments::is_answered(std::size_t member, std::uint64_t number) const {
  return !resumed_ || contributes(member, number) || missing_[number].receives[member];
}

bool Segments::holds_up(std::size_t member) const {
  return !all_answered() && contributes(member, next_result_) && next_[member] <= next_result_;
}

std::uint64_t Segments::advance(std::size_t member) {
  const std::uint64_t number = next_[member];
  next_[member] = next_of(member, number + 1);
  return number;
}

bool Segments::add(std::uint64_t number, std::size_t member, Contribution contribution) {
  Segment& segment = gathered_[number];
  if (segment.arrived == 0) {
    segment.range = range(number);
    segment.contributions.resize(members_);
  }
  segment.contributions[member] = std::move(contribution);
  ++segment.arrived;
  return segment.arrived == contributors(number);
}

Segment Segments::take(std::uint64_t number) {
  const auto found = gathered_.find(number);
  Segment segment = std::move(found->second);
  gathered_.erase(found);
  return segment;
}

Segment Segments::take_result() {
  Segment segment = std::move(summed_.begin()->second);
  summed_.erase(summed_.begin());
  ++next_result_;
  return segment;
}

std::uint64_t Segments::settled_for(std::size_t member, std::uint64_t segments) {
  if (!resumed_) {
    return segments;
  }
  for (; settled_ < segments; ++settled_) {
    for (std::size_t i = 0; i < members_; ++i) {
      settled_for_[i] += is_answered(i, settled_) ? 1 : 0;
    }
  }
  return settled_for_[member];
}

std::vector<Segment> Segments::take_all() {
  std::vector<Segment> all;
  for (auto* segments : {&gathered_, &summed_}) {
    for (auto& [number, segment] : *segments) {
      all.push_back(std::move(segment));
    }
    segments->clear();
  }
  return all;
}

void Segments::add_credit(const std::vector<std::uint32_t>& ranks, std::vector<std::uint64_t>& by_rank) const {
  for (const auto* segments : {&gathered_, &summed_}) {
    for (const auto& [number, segment] : *segments) {
      for (std::size_t i = 0; i < segment.contributions.size(); ++i) {
        by_rank[ranks[i]] += segment.contributions[i].credit;
      }
    }
  }
}

void Segments::check_invariants() const {
  SHOAL_INVARIANT(next_result_ <= count_);
  SHOAL_INVARIANT(settled_ <= next_result_);
  for (const auto& [number, segment] : gathered_) {
    SHOAL_INVARIANT(number >= next_result_ && number < count_);
    SHOAL_INVARIANT(segment.arrived > 0 && segment.arrived < contributors(number));
    SHOAL_INVARIANT(segment.range == range(number));
    const auto came = std::count_if(segment.contributions.begin(), segment.contributions.end(),
                                    [](const Contribution& one) { return one.data != nullptr; });
    SHOAL_INVARIANT(static_cast<std::size_t>(came) == segment.arrived);
  }
  for (const auto& [number, segment] : summed_) {
    SHOAL_INVARIANT(number > next_result_ && number < count_);
    SHOAL_INVARIANT(gathered_.count(number) == 0);
  }
}

}  // namespace shoal::server
