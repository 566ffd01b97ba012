#include "protocol/worker/retained_results.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/invariant.h"

namespace shoal::worker {

void RetainedResults::add(Range range, Buffer bytes, std::uint32_t had_by_all) {
  const Range held = bytes ? range : Range{};
  results_.push_back({held, std::move(bytes)});
  const std::uint32_t let_go = std::min(had_by_all - let_go_, static_cast<std::uint32_t>(results_.size()));
  results_.erase(results_.begin(), results_.begin() + let_go);
  let_go_ += let_go;
}

void RetainedResults::take_over(RetainedResults& ended) {
  std::move(ended.results_.begin(), ended.results_.end(), std::back_inserter(results_));
  ended.results_.clear();
}

void RetainedResults::forget(const RangeSet& had_by_all) {
  std::erase_if(results_, [&had_by_all](const Result& result) { return had_by_all.contains(result.range); });
}

void RetainedResults::copy(Range range, std::byte* to) const {
  for (const Result& result : results_) {
    const Range held = intersection(result.range, range);
    if (!held.empty()) {
      std::memcpy(to + (held.begin - range.begin), result.bytes.data() + (held.begin - result.range.begin),
                  held.size());
    }
  }
}

void RetainedResults::check_invariants() const {
  for (const Result& result : results_) {
    SHOAL_INVARIANT(result.range.size() == result.bytes.size());
  }
}

}  // namespace shoal::worker
