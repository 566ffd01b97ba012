#include "protocol/server/missing_pieces.h"

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

// Where in the shard it may matter who has what: the ends of every range that a member has, or wants.
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

// Who lacks what is between two cuts. `receives` says nobody: nothing is missing.
Piece piece_of(const Operation& operation, const std::vector<RangeSet>& have, Range range) {
  const bool can_help = traits_of(operation.attributes().collective).shares_results();
  Piece piece{range, std::nullopt, false, std::vector<bool>(operation.size())};
  for (std::size_t i = 0; i < operation.size(); ++i) {
    const bool has = have[i].contains(range);
    piece.receives[i] = !has;
    piece.needs_data = piece.needs_data || (!has && !intersection(range, operation.wanted(i)).empty());
    if (has && can_help && !piece.source) {
      piece.source = i;
    }
  }
  return piece;
}

bool continues(const Piece& one, const Piece& next) {
  return one.range.end == next.range.begin && one.source == next.source && one.needs_data == next.needs_data &&
         one.receives == next.receives;
}

}  // namespace

std::vector<Piece> missing_pieces(const Operation& operation, Range shard) {
  const std::vector<RangeSet> have = results_of(operation);
  const std::vector<std::uint64_t> cuts = cuts_of(operation, have, shard);
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at + 1 < cuts.size(); ++at) {
    Piece piece = piece_of(operation, have, {cuts[at], cuts[at + 1]});
    if (std::none_of(piece.receives.begin(), piece.receives.end(), [](bool lacks) { return lacks; })) {
      continue;
    }
    if (!pieces.empty() && continues(pieces.back(), piece)) {
      pieces.back().range.end = piece.range.end;
    } else {
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

}  // namespace shoal::server
