// Where groups of some ranks of a node have memory of their own: areas of the node's, each with one word that says
// whose it is.
//
// Making a group is not collective: members make their groups in different orders, and nobody may wait for anybody. So
// whoever comes first takes the first area that is nobody's, and all others find it. One word decides, once and for
// all: it is 0, and then for ever the group's hash, how many ranks it has, and whether there is memory. An area begins
// where those before it end, and has the size for so many ranks. Hence
//
//   * all members of a group come to the same area, or to none: whoever has passed a word by has seen it taken by
//     another group, and so will everyone;
//   * an area is one group's alone, as far as 57 bits tell groups apart;
//   * a process that is killed at any instruction leaves a word that is 0 or decided;
//   * there are as many as there is memory for them (limits::areas_bytes). What is full is full for all.
//
// The memory is there before the word says so. New memory is all zero, which is how its words begin, so there is
// nothing to be initialised, and whoever comes later finds what others have done there already. Two who take the same
// area at once do each other no harm: one may only lose pages of the other's that nobody has touched, when it fails,
// and these are touched before the word is written. What is taken is not given back.
#pragma once

#include <memory>
#include <vector>

#include "base/hash.h"
#include "drivers/shm/memory.h"

namespace shoal::shm {

// For a group. `places`: of its members in the node, in the group's order. Null: there is none, as all
// members will find.
std::shared_ptr<const Memory> memory_for_group(const std::shared_ptr<const Memory>& node, const Hash128& id,
                                               const std::vector<std::uint32_t>& places);

}  // namespace shoal::shm
