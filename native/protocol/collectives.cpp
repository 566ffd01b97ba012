#include "protocol/collectives.h"

#include <array>
#include <stdexcept>

#include "protocol/sharding.h"

namespace shoal {

namespace {

using Contributors = CollectiveTraits::Contributors;
using Receivers = CollectiveTraits::Receivers;

constexpr CollectiveTraits unknown{"an unknown collective", Contributors::none, Receivers::none, false, false};

// By number.
constexpr std::array collectives{
    CollectiveTraits{"none", Contributors::none, Receivers::none, false, false},
    CollectiveTraits{"allreduce", Contributors::all, Receivers::all, true, false},
    CollectiveTraits{"reducescatter", Contributors::all, Receivers::chunks, true, false},
    CollectiveTraits{"broadcast", Contributors::root, Receivers::all_but_root, false, true},
    CollectiveTraits{"allgather", Contributors::all, Receivers::blocks, false, true},
    CollectiveTraits{"alltoall", Contributors::all, Receivers::blocks, false, false},
    CollectiveTraits{"barrier", Contributors::none, Receivers::none, false, false},
};

}  // namespace

const CollectiveTraits& traits_of(Collective collective) {
  const auto number = static_cast<std::size_t>(collective);
  return number < collectives.size() ? collectives[number] : unknown;
}

bool contributes(Collective collective, std::size_t member, std::size_t root) {
  switch (traits_of(collective).contributors) {
    case Contributors::all:
      return true;
    case Contributors::root:
      return member == root;
    case Contributors::none:
      break;
  }
  return false;
}

std::size_t contributors(Collective collective, std::size_t members) {
  switch (traits_of(collective).contributors) {
    case Contributors::all:
      return members;
    case Contributors::root:
      return 1;
    case Contributors::none:
      break;
  }
  return 0;
}

bool waits_for_others(Collective collective, std::size_t member, std::size_t root) {
  return traits_of(collective).needs_contributors() && contributes(collective, member, root);
}

Range received_by(Collective collective, std::uint64_t bytes, std::uint64_t rows, std::size_t members,
                  std::size_t member, std::size_t root) {
  switch (traits_of(collective).receivers) {
    case Receivers::chunks:
      return chunk_of(bytes, rows, members, member);
    case Receivers::all_but_root:
      return member == root ? Range{} : Range{0, bytes};
    case Receivers::all:
    case Receivers::blocks:
    case Receivers::none:
      break;
  }
  return {0, bytes};
}

Range received_by(const wire::Opening& opening, std::size_t members, std::size_t member, Senders senders) {
  const std::uint64_t rows = rows_of(opening.shape, members, senders);
  return received_by(opening.collective, opening.bytes, rows, members, member, opening.root);
}

std::uint64_t rows_of(const std::vector<std::int64_t>& shape, std::size_t members, Senders senders) {
  return senders == Senders::nodes ? members : shape.empty() ? 0 : static_cast<std::uint64_t>(shape.front());
}

std::vector<Range> blocks_for_members(const wire::Opening& opening, std::size_t member, std::size_t members) {
  const CollectiveTraits& traits = traits_of(opening.collective);
  const bool split = traits.gathers() && !traits.same_blocks;
  if (split && opening.splits.size() != members) {
    throw std::invalid_argument("an all-to-all that is not for all ranks");
  }
  if (traits.receivers == Receivers::none || traits.shares_results()) {
    throw std::invalid_argument("an operation that has no blocks");
  }
  std::vector<Range> blocks(members);
  std::uint64_t end = 0;
  for (std::size_t to = 0; to < members; ++to) {
    bool fits = true;
    if (split) {
      const auto bytes = static_cast<std::uint64_t>(opening.splits[to]);  // what is negative is too large
      fits = bytes <= opening.bytes - end;
      blocks[to] = {end, end + bytes};
      end += bytes;
    } else if (contributes(opening.collective, member, opening.root)) {
      // The root has a broadcast's bytes for itself too, where its output is another array than its input.
      blocks[to] = traits.reduces ? received_by(opening, members, to) : Range{0, opening.bytes};
    }
    if (!fits || blocks[to].end > opening.bytes) {
      throw std::invalid_argument("blocks that are larger than their array");
    }
  }
  return blocks;
}

}  // namespace shoal
