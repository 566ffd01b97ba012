#include "protocol/local/plans.h"

#include <algorithm>
#include <stdexcept>

#include "protocol/local/local_mean.h"

namespace shoal::local {

namespace {

// What one rank can get: more is not a number of bytes that memory could be asked for.
constexpr std::uint64_t most_incoming = std::uint64_t{1} << 62U;

}  // namespace

Blocks blocks_of(const Operation& operation, std::uint32_t own) {
  const std::vector<std::uint32_t>& order = operation.group->here;
  const std::size_t ranks = order.size();
  const CollectiveTraits& traits = traits_of(operation.submission.collective);
  Blocks blocks;
  blocks.outgoing.resize(ranks);
  blocks.incoming.resize(ranks);
  blocks.origins.resize(ranks);
  blocks.same = traits.same_blocks;
  const auto own_place = static_cast<std::size_t>(std::find(order.begin(), order.end(), own) - order.begin());
  std::uint64_t in = 0;
  for (std::size_t place = 0; place < ranks; ++place) {
    std::vector<Range> theirs;
    try {
      theirs = blocks_for_members(operation.calls.opening_of(order[place], operation.opening), place, ranks);
    } catch (const std::invalid_argument& error) {
      throw std::runtime_error(std::string("in the node's shared memory there is ") + error.what());
    }
    for (std::size_t to = 0; to < ranks; ++to) {
      blocks.largest = std::max(blocks.largest, theirs[to].size());
      if (place == own_place) {
        blocks.outgoing[order[to]] = theirs[to];
      }
    }
    // Sums go to the begin of the output, from whichever rank.
    const std::uint64_t begin = traits.gathers() ? in : 0;
    blocks.incoming[order[place]] = {begin, begin + theirs[own_place].size()};
    blocks.origins[order[place]] = theirs[own_place].begin;
    if (theirs[own_place].size() > most_incoming - in) {
      throw std::runtime_error("in the node's shared memory there are blocks of more bytes than there can be");
    }
    in += theirs[own_place].size();
  }
  return blocks;
}

Blocks crossing_blocks(const Operation& operation, std::uint32_t own, bool is_first) {
  const Group& group = *operation.group;
  Blocks blocks;
  blocks.outgoing.resize(group.here.size());
  blocks.incoming.resize(group.here.size());
  blocks.origins.resize(group.here.size());
  blocks.same = true;
  blocks.largest = 1;  // a chunk in any case: when it is through, all ranks here have begun
  for (std::size_t i = 0; i < group.here.size(); ++i) {
    const Piece& piece = operation.crossing->members[group.indices[i]];
    const std::uint64_t begin = is_first ? piece.crossing.begin : piece.own;
    blocks.incoming[group.here[i]] = {begin, begin + piece.crossing.size()};
    blocks.largest = std::max(blocks.largest, piece.crossing.size());
    if (group.here[i] == own && piece.crossing.size() != operation.submission.input_bytes) {
      throw std::runtime_error("the node's shared memory is damaged: a block of another size than was called");
    }
  }
  for (Range& outgoing : blocks.outgoing) {
    outgoing = {0, operation.submission.input_bytes};
  }
  return blocks;
}

std::vector<std::uint64_t> incoming_sizes(const Operation& operation, const Blocks& blocks) {
  std::vector<std::uint64_t> sizes;
  for (const std::uint32_t place : operation.group->here) {
    sizes.push_back(blocks.incoming[place].size());
  }
  return sizes;
}

Transfer reduction_of(const Operation& operation, std::uint32_t ranks) {
  const Submission& s = operation.submission;
  Transfer transfer;
  transfer.handle = s.handle;
  transfer.input = s.input;
  transfer.output = s.output;
  transfer.bytes = s.input_bytes;
  transfer.dtype = s.dtype;
  transfer.op = s.op;
  transfer.order = operation.group->here;
  transfer.divisor = ranks;
  if (operation.group->internode) {
    const Internode& internode = *operation.group->internode;
    const LocalMean mean = local_mean_of(s.dtype, s.op, internode.ranks, internode.largest);
    transfer.op = mean.op;
    transfer.divisor = mean.divisor;
    transfer.up = true;
    if (transfer.bytes >= internode.shared_from) {
      transfer.weights = internode.weights;
    }
  }
  return transfer;
}

bool all_have_places(const Operation& operation) {
  const std::vector<std::uint32_t>& ranks = operation.group->here;
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](std::uint32_t place) { return operation.calls.offsets_of(place).has_value(); });
}

}  // namespace shoal::local
