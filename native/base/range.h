// Parts of a buffer, in bytes: one, and sets of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shoal {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const Range&, const Range&) = default;
};

inline Range intersection(Range a, Range b) {
  const std::uint64_t begin = std::max(a.begin, b.begin);
  const std::uint64_t end = std::min(a.end, b.end);
  return begin < end ? Range{begin, end} : Range{begin, begin};
}

// Ranges, none empty, ascending, neither overlapping nor touching.
class RangeSet {
 public:
  RangeSet() = default;
  explicit RangeSet(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
      add(range);
    }
  }

  void add(Range added) {
    if (added.empty()) {
      return;
    }
    const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), added.begin,
                                        [](const Range& range, std::uint64_t begin) { return range.end < begin; });
    auto last = first;
    for (; last != ranges_.end() && last->begin <= added.end; ++last) {
      added = {std::min(added.begin, last->begin), std::max(added.end, last->end)};
    }
    ranges_.insert(ranges_.erase(first, last), added);
  }

  bool contains(Range range) const {
    if (range.empty()) {
      return true;
    }
    const auto found = std::lower_bound(ranges_.begin(), ranges_.end(), range.end,
                                        [](const Range& one, std::uint64_t end) { return one.end < end; });
    return found != ranges_.end() && found->begin <= range.begin;
  }

  bool touches(Range range) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [range](const Range& one) { return !intersection(one, range).empty(); });
  }

  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

}  // namespace shoal
