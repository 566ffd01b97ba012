#include "protocol/local/small_operations.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace shoal::local::small {

const std::byte* contribution_of(const Operation& operation, std::uint32_t place, std::uint32_t own) {
  return place == own ? operation.submission.input : operation.calls.data_of(place).data();
}

void reduce(const Operation& operation, std::uint32_t own, std::byte* sum, Operator op, double divisor, Hands& hands) {
  const Submission& s = operation.submission;
  if (s.input_bytes == 0) {
    return;
  }
  const std::vector<std::uint32_t>& order = operation.group->here;
  std::vector<const std::byte*> sources;
  sources.reserve(order.size());
  for (std::uint32_t place : order) {
    sources.push_back(contribution_of(operation, place, own));
  }
  hands.sum(sum, sources, s.input_bytes / size_of(s.dtype), s.dtype, op, divisor);
}

void move_blocks(const Operation& operation, const Blocks& blocks, std::uint32_t own, Hands& hands) {
  const Submission& s = operation.submission;
  const std::vector<std::uint32_t>& order = operation.group->here;
  const auto from = [&](std::uint32_t place) { return contribution_of(operation, place, own) + blocks.origins[place]; };
  if (traits_of(s.collective).reduces) {
    std::vector<const std::byte*> sources;
    std::transform(order.begin(), order.end(), std::back_inserter(sources), from);
    // The output may be that part of the input.
    wire::Bytes sum(blocks.outgoing[own].size());
    hands.sum(sum.data(), sources, sum.size() / size_of(s.dtype), s.dtype, s.op, static_cast<double>(order.size()));
    hands.copy(s.output, sum.data(), sum.size());
    return;
  }
  for (std::uint32_t place = 0; place < order.size(); ++place) {
    const Range to = blocks.incoming[place];
    if (!to.empty() && s.output + to.begin != from(place)) {
      hands.copy(s.output + to.begin, from(place), to.size());
    }
  }
}

}  // namespace shoal::local::small
