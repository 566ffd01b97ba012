#include "protocol/local/network_results.h"

#include <algorithm>

namespace shoal::local {

void NetworkResults::expect(std::uint64_t handle, const std::optional<Chunks>& chunks) {
  Expected expected;
  if (chunks) {
    expected.chunks = *chunks;
    for (std::uint64_t number = 0; number < chunks->count(); ++number) {
      expected.lacking.push_back(chunks->at(number).size());
    }
  }
  expected_[handle] = std::move(expected);
}

bool NetworkResults::received(std::uint64_t handle, Range range) {
  const auto found = expected_.find(handle);
  if (found == expected_.end()) {
    return false;
  }
  Expected& expected = found->second;
  bool any = false;
  while (!range.empty()) {
    const std::uint64_t number = expected.chunks.holding(range.begin);
    const Range chunk = expected.chunks.at(number);
    const std::uint64_t bytes = std::min(range.end, chunk.end) - range.begin;
    range.begin += bytes;
    expected.lacking[number] -= bytes;
    if (expected.lacking[number] == 0) {
      arrived_.push_back({handle, chunk, false, {}});
      any = true;
    }
  }
  return any;
}

bool NetworkResults::ended(std::uint64_t handle, Status status) {
  if (expected_.erase(handle) == 0) {
    return false;
  }
  arrived_.push_back({handle, {}, true, std::move(status)});
  return true;
}

}  // namespace shoal::local
