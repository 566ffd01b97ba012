// The collectives in one table: who contributes, who gets what of the result, and which way the bytes go.
//
// Workers, servers and the ranks of one machine ask here, so that they cannot come to different answers. `root` and
// `member` are indices in the group; `rows`: of the array, which a scattered result is cut along. They are its first
// dimension; what leaders scatter has a row for each of them (protocol/local/crossing.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/range.h"
#include "base/types.h"
#include "protocol/job.h"
#include "wire/opening.h"

namespace shoal {

struct CollectiveTraits {
  enum class Contributors { none, root, all };
  enum class Receivers {
    none,
    all,           // the whole result
    all_but_root,  // the whole result; the root has it
    chunks,        // each its chunk of it (chunk_of, protocol/sharding.h)
    blocks,        // one block from each member, in order
  };

  const char* name;  // for messages
  Contributors contributors;
  Receivers receivers;
  bool reduces;      // contributions are summed, or reduced by another operator
  bool same_blocks;  // if blocks are sent: each member sends the same block to all

  // Whether all members get the same bytes, so that one can give them to another.
  bool shares_results() const { return reduces && receivers == Receivers::all; }
  // Whether it puts together blocks that go from worker to worker; nothing is summed.
  bool gathers() const { return receivers == Receivers::blocks; }
  // Among several nodes of several ranks: whether the ranks of a node do their part together, and its leader speaks for
  // them (protocol/local/local_group.h). If not, each rank does it for itself.
  bool goes_up() const { return shares_results() || receivers == Receivers::chunks || (gathers() && same_blocks); }
  bool has_root() const { return contributors == Contributors::root || receivers == Receivers::all_but_root; }
  // Whether what a member gives is nowhere else until the others have what they get of it. So contributors keep their
  // arrays, and their handles wait, until all others have it (waits_for_others).
  bool needs_contributors() const {
    return contributors != Contributors::none && !gathers() && receivers != Receivers::all;
  }
  // Whether the root alone gives. It gets nothing, so a server answers it when it has written to all others: it is not
  // ahead of members that read slowly.
  bool root_gives_alone() const { return contributors == Contributors::root; }
  // Whether each member gives. So each sends before it receives, and hears first how long segments are.
  bool all_give() const { return contributors == Contributors::all; }
};

const CollectiveTraits& traits_of(Collective collective);

inline const char* name_of(Collective collective) { return traits_of(collective).name; }
inline bool is_gather(Collective collective) { return traits_of(collective).gathers(); }

bool contributes(Collective collective, std::size_t member, std::size_t root);
std::size_t contributors(Collective collective, std::size_t members);

// Whether the member's handle waits until the others have what they get: of operations that are not small.
bool waits_for_others(Collective collective, std::size_t member, std::size_t root);

// Which of an operation's bytes the member gets. Of a gather: all, since the sizes are known later.
Range received_by(Collective collective, std::uint64_t bytes, std::uint64_t rows, std::size_t members,
                  std::size_t member, std::size_t root);
// The same, from the member's opening. `senders`: the members are leaders, or not.
Range received_by(const wire::Opening& opening, std::size_t members, std::size_t member,
                  Senders senders = Senders::ranks);
std::uint64_t rows_of(const std::vector<std::int64_t>& shape, std::size_t members, Senders senders);

// Which ranges of its input the member with this opening sends to each member. For operations without a server. Throws
// std::invalid_argument for an impossible opening.
std::vector<Range> blocks_for_members(const wire::Opening& opening, std::size_t member, std::size_t members);

}  // namespace shoal
