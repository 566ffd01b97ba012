#include "protocol/server/missing_ranges.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "protocol/collectives.h"

namespace shoal::server {

namespace {

// By member.
std::vector<RangeSet> results_of(const Operation& operation) {
  std::vector<RangeSet> have;
  for (const Member& member : operation.members()) {
    const wire::Opening& opening = member.opening;
    have.emplace_back(opening.finished ? std::vector<Range>{{0, opening.bytes}} : opening.have);
  }
  return have;
}

// Where in the shard members may begin to differ: the ends of every range that a member has or wants.
std::vector<std::uint64_t> cuts_of(const Operation& operation, const std::vector<RangeSet>& have, Range shard) {
  std::vector<std::uint64_t> cuts{shard.begin, shard.end};
  const auto cut = [&](Range range) {
    const Range inside = intersection(range, shard);
    cuts.push_back(inside.empty() ? shard.begin : inside.begin);
    cuts.push_back(inside.empty() ? shard.begin : inside.end);
  };
  for (std::size_t i = 0; i < operation.size(); ++i) {
    std::for_each(have[i].ranges().begin(), have[i].ranges().end(), cut);
    cut(operation.wanted(i));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Which members lack the range between two cuts. Nothing is missing if `receives` is false for all.
MissingRange between_cuts(const Operation& operation, const std::vector<RangeSet>& have, Range between) {
  const bool can_help = traits_of(operation.attributes().collective).shares_results();
  MissingRange missing{between, std::nullopt, false, std::vector<bool>(operation.size())};
  for (std::size_t i = 0; i < operation.size(); ++i) {
    const bool has = have[i].contains(between);
    missing.receives[i] = !has;
    missing.needs_data = missing.needs_data || (!has && !intersection(between, operation.wanted(i)).empty());
    const bool is_there = !operation.member(i).dropped;  // else it has forgotten the operation
    if (has && can_help && is_there && !missing.source) {
      missing.source = i;
    }
  }
  return missing;
}

bool continues(const MissingRange& one, const MissingRange& next) {
  return one.range.end == next.range.begin && one.source == next.source && one.needs_data == next.needs_data &&
         one.receives == next.receives;
}

}  // namespace

std::vector<MissingRange> missing_ranges(const Operation& operation, Range shard) {
  const std::vector<RangeSet> have = results_of(operation);
  const std::vector<std::uint64_t> cuts = cuts_of(operation, have, shard);
  std::vector<MissingRange> missing;
  for (std::size_t at = 0; at + 1 < cuts.size(); ++at) {
    MissingRange next = between_cuts(operation, have, {cuts[at], cuts[at + 1]});
    if (std::none_of(next.receives.begin(), next.receives.end(), [](bool lacks) { return lacks; })) {
      continue;
    }
    if (!missing.empty() && continues(missing.back(), next)) {
      missing.back().range.end = next.range.end;
    } else {
      missing.push_back(std::move(next));
    }
  }
  return missing;
}

}  // namespace shoal::server
