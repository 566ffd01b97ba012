#include "protocol/local/network_results.h"

#include <algorithm>
#include <numeric>

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

std::byte* NetworkResults::allocate(std::uint64_t handle, const std::vector<std::uint64_t>& by_node) {
  const auto found = expected_.find(handle);
  const std::uint64_t bytes = std::accumulate(by_node.begin(), by_node.end(), std::uint64_t{0});
  if (found == expected_.end() || bytes > most_told) {
    return nullptr;
  }
  Told& told = found->second.told;
  told.by_node = by_node;
  told.bytes.resize(bytes);
  return told.bytes.data();
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
      arrived_.push_back({handle, chunk, false, {}, {}});
      any = true;
    }
  }
  return any;
}

bool NetworkResults::ended(std::uint64_t handle, Status status) {
  const auto found = expected_.find(handle);
  if (found == expected_.end()) {
    return false;
  }
  arrived_.push_back({handle, {}, true, std::move(status), std::move(found->second.told)});
  expected_.erase(found);
  return true;
}

}  // namespace shoal::local
