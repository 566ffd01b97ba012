#include "protocol/local/crossing.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "protocol/sharding.h"

namespace shoal::local {

namespace {

// Where the crossing array's bytes follow each other in the rank's own too, they are one place.
void join_pieces(std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.crossing.begin < b.crossing.begin; });
  std::vector<Piece> joined;
  for (const Piece& piece : pieces) {
    if (piece.crossing.empty()) {
      continue;
    }
    if (!joined.empty() && joined.back().crossing.end == piece.crossing.begin &&
        joined.back().own + joined.back().crossing.size() == piece.own) {
      joined.back().crossing.end = piece.crossing.end;
    } else {
      joined.push_back(piece);
    }
  }
  pieces = std::move(joined);
}

bool lie_alike(const std::vector<Piece>& pieces) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [](const Piece& one) { return one.crossing.empty() || one.crossing.begin == one.own; });
}

}  // namespace

std::vector<Range> Crossing::others(std::size_t own_node) const {
  std::vector<Range> parts;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (node != own_node && !nodes[node].empty()) {
      parts.push_back(nodes[node]);
    }
  }
  return parts;
}

Crossing crossing_of_gather(const std::vector<std::uint64_t>& sizes, const std::vector<std::uint32_t>& nodes,
                            std::size_t count) {
  Crossing crossing;
  crossing.members.resize(sizes.size());
  std::uint64_t own = 0;
  for (std::size_t member = 0; member < sizes.size(); ++member) {
    crossing.members[member].own = own;
    own += sizes[member];
  }
  for (std::size_t node = 0; node < count; ++node) {
    const std::uint64_t begin = crossing.bytes;
    for (std::size_t member = 0; member < sizes.size(); ++member) {
      if (nodes[member] == node) {
        crossing.members[member].crossing = {crossing.bytes, crossing.bytes + sizes[member]};
        crossing.bytes += sizes[member];
      }
    }
    crossing.nodes.push_back({begin, crossing.bytes});
  }
  crossing.result = {0, crossing.bytes};
  crossing.takes = crossing.members;
  join_pieces(crossing.takes);
  crossing.is_plain = lie_alike(crossing.members);
  return crossing;
}

Crossing crossing_of_scatter(std::uint64_t bytes, std::uint64_t rows, const std::vector<std::uint32_t>& nodes,
                             std::size_t count, std::size_t own) {
  std::vector<std::uint64_t> lengths(count);
  for (std::size_t member = 0; member < nodes.size(); ++member) {
    lengths[nodes[member]] += chunk_of(bytes, rows, nodes.size(), member).size();
  }
  const std::uint64_t row = *std::max_element(lengths.begin(), lengths.end());
  Crossing crossing;
  crossing.bytes = row * count;
  std::vector<std::uint64_t> ends(count);
  for (std::size_t node = 0; node < count; ++node) {
    ends[node] = node * row;
    crossing.nodes.push_back({node * row, (node + 1) * row});
  }
  for (std::size_t member = 0; member < nodes.size(); ++member) {
    const Range chunk = chunk_of(bytes, rows, nodes.size(), member);
    std::uint64_t& end = ends[nodes[member]];
    crossing.members.push_back({{end, end + chunk.size()}, chunk.begin});
    end += chunk.size();
  }
  crossing.result = crossing.nodes[nodes[own]];
  const Range& taken = crossing.members[own].crossing;
  crossing.takes = {{{taken.begin - crossing.result.begin, taken.end - crossing.result.begin}, 0}};
  crossing.is_plain = crossing.bytes == bytes && lie_alike(crossing.members);
  return crossing;
}

void take(const std::vector<Piece>& takes, Range part, const std::byte* from, std::byte* output, Hands& hands) {
  for (const Piece& piece : takes) {
    const Range here = intersection(piece.crossing, part);
    if (!here.empty()) {
      hands.copy(output + piece.own + (here.begin - piece.crossing.begin), from + (here.begin - part.begin),
                 here.size());
    }
  }
}

wire::Bytes encode_blocks(const std::vector<std::uint64_t>& sizes, const std::vector<ConstBytes>& blocks) {
  wire::Bytes told(sizes.size() * sizeof(std::uint64_t));
  std::memcpy(told.data(), sizes.data(), told.size());
  for (const ConstBytes& block : blocks) {
    told.insert(told.end(), block.begin(), block.end());
  }
  return told;
}

GatheredBlocks decoded_blocks(ConstBytes told, const std::vector<std::uint64_t>& by_node,
                              const std::vector<std::uint32_t>& nodes) {
  GatheredBlocks gathered;
  gathered.sizes.resize(nodes.size());
  gathered.blocks.resize(nodes.size());
  gathered.is_whole = true;
  if (by_node.size() != std::size_t{*std::max_element(nodes.begin(), nodes.end())} + 1) {
    throw std::runtime_error("not every node has told of its blocks");
  }
  std::vector<std::uint64_t> sums;  // by node
  for (std::uint32_t node = 0; node < by_node.size(); ++node) {
    std::vector<std::size_t> members;
    for (std::size_t member = 0; member < nodes.size(); ++member) {
      if (nodes[member] == node) {
        members.push_back(member);
      }
    }
    const std::size_t heads = members.size() * sizeof(std::uint64_t);
    if (by_node[node] > told.size() || by_node[node] < heads) {
      throw ImpossibleBlocks(node);
    }
    ConstBytes own = told.first(by_node[node]);
    told = told.subspan(by_node[node]);
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      std::uint64_t& size = gathered.sizes[members[i]];
      std::memcpy(&size, own.data() + i * sizeof size, sizeof size);
      if (size > most_of_block) {
        throw ImpossibleBlocks(node);
      }
      all += size;
    }
    sums.push_back(all);
    own = own.subspan(heads);
    if (!own.empty() && own.size() != all) {
      throw ImpossibleBlocks(node);
    }
    if (own.size() < all) {
      gathered.is_whole = false;
      continue;
    }
    for (const std::size_t member : members) {
      gathered.blocks[member] = own.first(gathered.sizes[member]);
      own = own.subspan(gathered.sizes[member]);
    }
  }
  if (std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) > most_of_block) {
    throw ImpossibleBlocks(static_cast<std::size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin()));
  }
  return gathered;
}

}  // namespace shoal::local
