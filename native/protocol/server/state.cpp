#include "protocol/server/state.h"

#include <algorithm>

#include "base/limits.h"
#include "protocol/agreement.h"
#include "protocol/collectives.h"

namespace shoal::server {

std::optional<std::size_t> Group::index_of(std::uint32_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found - ranks.begin());
}

const wire::Opening& Operation::attributes() const {
  const auto first = std::find_if(members.begin(), members.end(), [](const Member& m) { return m.opened; });
  return first->opening;
}

bool Operation::is_contributor(std::size_t member) const {
  return shoal::contributes(attributes().collective, member, attributes().root);
}

std::size_t Operation::contributors(std::uint64_t number) const {
  if (resumed && (pieces[number].source || !pieces[number].needs_data)) {
    return pieces[number].needs_data ? 1 : 0;
  }
  return shoal::contributors(attributes().collective, members.size());
}

bool Operation::contributes(std::size_t member, std::uint64_t number) const {
  if (resumed && (pieces[number].source || !pieces[number].needs_data)) {
    return pieces[number].source == member;
  }
  return is_contributor(member);
}

std::uint64_t Operation::next_of(std::size_t member, std::uint64_t number) const {
  while (number < segments && !contributes(member, number)) {
    ++number;
  }
  return number;
}

bool Operation::is_answered(std::size_t member, std::uint64_t number) const {
  return !resumed || contributes(member, number) || pieces[number].receives[member];
}

bool Operation::lacks(std::size_t member, std::uint64_t number) const {
  return resumed ? pieces[number].receives[member] : !members[member].opening.finished;
}

Range Operation::segment_range(std::uint64_t number) const {
  if (resumed) {
    return pieces[number].range;
  }
  const std::uint64_t begin = shard.begin + number * segment;
  return {begin, std::min(begin + segment, shard.end)};
}

Range Operation::wanted(std::size_t member) const { return received_by(attributes(), members.size(), member); }

std::vector<std::uint32_t> missing(const Operation& operation) {
  std::vector<std::uint32_t> ranks;
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    if (!operation.members[i].opened) {
      ranks.push_back(operation.group->ranks[i]);
    }
  }
  return ranks;
}

// With its places in tables, and what is remembered of it until all have its results.
std::size_t record_bytes(const Group& group) {
  constexpr std::size_t entries = 512;
  constexpr std::size_t receipt = 16;
  return sizeof(Operation) + entries + group.ranks.size() * (sizeof(Member) + receipt);
}

std::size_t record_bytes(const wire::Opening& opening) {
  constexpr std::size_t entry = 32;  // of the worker's numbers
  return entry + opening.name.size() + opening.text.size() + 8 * (opening.shape.size() + opening.splits.size()) +
         sizeof(Range) * opening.have.size();
}

std::string mismatch_text(const Operation& operation, const JobConfig& config) {
  std::vector<const wire::Opening*> openings;
  for (const Member& member : operation.members) {
    openings.push_back(member.opened ? &member.opening : nullptr);
  }
  return shoal::mismatch_text(openings, operation.group->ranks, config);
}

}  // namespace shoal::server
