#include "protocol/server_state.h"

#include <algorithm>

#include "base/limits.h"

namespace shoal::server {

namespace {

// The part of the shape that must agree.
std::vector<std::int64_t> compared_shape(const wire::Opening& opening) {
  if (is_gather(opening.collective) && !opening.shape.empty()) {
    return {opening.shape.begin() + 1, opening.shape.end()};
  }
  return opening.shape;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace

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
  switch (attributes().collective) {
    case Collective::broadcast:
      return member == attributes().root;
    case Collective::barrier:
      return false;
    default:
      return true;
  }
}

std::size_t Operation::contributors(std::uint64_t number) const {
  if (resumed && (pieces[number].source || !pieces[number].needs_data)) {
    return pieces[number].needs_data ? 1 : 0;
  }
  switch (attributes().collective) {
    case Collective::broadcast:
      return 1;
    case Collective::barrier:
      return 0;
    default:
      return members.size();
  }
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

Range Operation::wanted(std::size_t member) const {
  const wire::Opening& opening = attributes();
  switch (opening.collective) {
    case Collective::reduce_scatter:
      return chunk_of(opening.bytes, opening.shape.empty() ? 0 : static_cast<std::uint64_t>(opening.shape[0]),
                      members.size(), member);
    case Collective::broadcast:
      return member == opening.root ? Range{} : Range{0, opening.bytes};
    default:
      return {0, opening.bytes};
  }
}

bool agree(const wire::Opening& a, const wire::Opening& b, std::string& what) {
  const auto differ = [&what](bool different, const char* attribute) {
    if (different && what.empty()) {
      what = attribute;
    }
  };
  what.clear();
  differ(a.name != b.name, "name");
  differ(a.collective != b.collective, "operation");
  differ(a.op != b.op, "operator");
  differ(a.dtype != b.dtype, "dtype");
  differ(a.root != b.root, "root");
  differ(a.scale_before != b.scale_before || a.scale_after != b.scale_after, "scale");
  differ(a.shape.size() != b.shape.size() || compared_shape(a) != compared_shape(b), "shape");
  differ(!is_gather(a.collective) && a.bytes != b.bytes, "size");
  return what.empty();
}

std::string describe(const wire::Opening& opening) {
  std::string text = name_of(opening.collective);
  if (opening.op != Operator::none) {
    text += std::string(" ") + name_of(opening.op);
  }
  if (opening.dtype != DType::none) {
    text += std::string(" ") + name_of(opening.dtype) + shape_text(opening.shape);
  }
  if (opening.collective == Collective::broadcast) {
    text += " from member " + std::to_string(opening.root);
  }
  return text;
}

std::vector<std::uint32_t> missing(const Operation& operation) {
  std::vector<std::uint32_t> ranks;
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    if (!operation.members[i].opened) {
      ranks.push_back(operation.group->ranks[i]);
    }
  }
  return ranks;
}

std::string mismatch_text(const Operation& operation, const JobConfig& config) {
  // Members that sent the same are named together.
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> sent;
  std::string what;
  for (std::size_t i = 0; i < operation.members.size(); ++i) {
    const Member& member = operation.members[i];
    if (!member.opened) {
      continue;
    }
    std::string differs;
    if (!agree(operation.attributes(), member.opening, differs) && what.empty()) {
      what = differs;
    }
    const std::string text = describe(member.opening);
    auto same = std::find_if(sent.begin(), sent.end(), [&text](const auto& entry) { return entry.first == text; });
    if (same == sent.end()) {
      sent.push_back({text, {}});
      same = sent.end() - 1;
    }
    same->second.push_back(operation.group->ranks[i]);
  }
  std::string text = "'" + operation.name() + "': ranks disagree on the " + what + ": ";
  for (std::size_t i = 0; i < sent.size(); ++i) {
    text += (i == 0 ? "" : "; ") + ranks_text(sent[i].second, config) + " called " + sent[i].first;
  }
  const std::vector<std::uint32_t> absent = missing(operation);
  if (!absent.empty()) {
    text += "; " + ranks_text(absent, config) + " had not called it yet";
  }
  return text + ". Every rank must call it with the same arguments";
}

}  // namespace shoal::server
