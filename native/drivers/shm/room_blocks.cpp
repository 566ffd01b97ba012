// Operations in which ranks have different bytes for each other: reduce-scatter, broadcast, all-gather, all-to-all; and
// those that are small, whose bytes lie beside the openings.
//
// How much each rank has for each other is in the openings, which all ranks see: so all cut the blocks alike.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "drivers/shm/room_impl.h"
#include "protocol/collectives.h"
#include "protocol/sharding.h"
#include "reduce/reduce.h"

namespace shoal::shm {

// Also makes the memory of a gather. False: there is none, and everything has ended.
bool Room::Impl::prepare_blocks(Operation& operation, Blocks& blocks) {
  const std::vector<std::uint32_t>& order = operation.group->here;
  Submission& s = operation.submission;
  blocks.outgoing.resize(ranks_);
  blocks.incoming.resize(ranks_);
  blocks.origins.resize(ranks_);
  blocks.same = traits_of(s.collective).same_blocks;
  const auto own = static_cast<std::size_t>(std::find(order.begin(), order.end(), rank_) - order.begin());
  std::vector<std::uint64_t> sizes;
  std::uint64_t in = 0;
  for (std::size_t place = 0; place < ranks_; ++place) {
    const Call& call = operation.calls[order[place]];
    const std::vector<Range> theirs =
        blocks_for_members(call.same ? operation.opening : decoded(call.body), place, ranks_);
    for (std::size_t to = 0; to < ranks_; ++to) {
      blocks.largest = std::max(blocks.largest, theirs[to].size());
      if (place == own) {
        blocks.outgoing[order[to]] = theirs[to];
      }
    }
    // Sums come to where the output begins, whoever they come from.
    const std::uint64_t begin = is_gather(s.collective) ? in : 0;
    blocks.incoming[order[place]] = {begin, begin + theirs[own].size()};
    blocks.origins[order[place]] = theirs[own].begin;
    sizes.push_back(theirs[own].size());
    in += theirs[own].size();
  }
  if (is_gather(s.collective)) {
    s.output = world_.allocate_output(s.handle, sizes);
    s.output_bytes = in;
    if (s.output == nullptr && in > 0) {
      give_up(Status::error(Code::failed_on_rank,
                            "'" + operation.opening.name + "' brings " + name_of(rank_) + " " + std::to_string(in) +
                                " bytes, for which there is no memory",
                            in_job(rank_)));
      return false;
    }
  }
  return true;
}

// All contributions are here.
void Room::Impl::finish_small(Operation& operation) {
  const Submission& s = operation.submission;
  if (s.collective == Collective::all_reduce) {
    reduce_small(operation, static_cast<double>(ranks_), s.op);
    return end(operation, {});
  }
  if (s.collective == Collective::barrier) {
    return end(operation, {});
  }
  Blocks blocks;
  if (!prepare_blocks(operation, blocks)) {
    return;
  }
  const auto from = [&](std::uint32_t rank) {
    return (rank == rank_ ? s.input : operation.calls[rank].data.data()) + blocks.origins[rank];
  };
  if (s.collective == Collective::reduce_scatter) {
    std::vector<const std::byte*> sources;
    std::transform(operation.group->here.begin(), operation.group->here.end(), std::back_inserter(sources), from);
    // The output may be that part of the input.
    wire::Bytes sum(blocks.outgoing[rank_].size());
    reduce(sum.data(), sources, sum.size() / size_of(s.dtype), s.dtype, s.op, static_cast<double>(ranks_));
    std::copy(sum.begin(), sum.end(), s.output);
    return end(operation, {});
  }
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const Range to = blocks.incoming[rank];
    if (!to.empty() && s.output + to.begin != from(rank)) {
      std::memcpy(s.output + to.begin, from(rank), to.size());
    }
  }
  end(operation, {});
}

}  // namespace shoal::shm
