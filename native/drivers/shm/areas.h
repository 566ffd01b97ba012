// Memory for subgroups: groups of some ranks of a node. Each has an area of the node's memory, and each area has one
// word that says whose it is.
//
// Making a group is not collective: members make their groups in different orders, and nobody may wait for anybody. So
// the first member takes the first free area, and the others find it. The area's word decides, once and for all. It is
// 0 while the area is free; then for ever the group's hash, how many ranks it has, and whether there is memory. An area
// begins where the one before it ends, and its size follows from the number of ranks. Hence
//
//   * all members of a group find the same area, or none: a member that passes over a word has seen it taken by another
//     group, and so will every other member;
//   * an area belongs to one group alone, as far as 57 bits tell groups apart;
//   * a process that is killed at any instruction leaves a word that is 0 or decided;
//   * there are as many areas as there is memory for (limits::areas_bytes). When they are full, they are full for all.
//
// The memory is there before the word says so. New memory is all zero, and so are its words at first. So nothing is
// initialised, and a member that comes later finds what others have already done there. Two members may take the same
// area at once. If one of them fails, the other may lose pages, but only pages that nobody has touched; and each
// touches its pages before it writes the word. What is taken is never given back.
#pragma once

#include <memory>
#include <vector>

#include "base/hash.h"
#include "drivers/shm/memory.h"

namespace shoal::shm {

// The memory of a group. `places`: of its members in the node, in the group's order. Null: there is none, for any
// member.
std::shared_ptr<const Memory> memory_for_group(const std::shared_ptr<const Memory>& node, const Hash128& id,
                                               const std::vector<std::uint32_t>& places);

}  // namespace shoal::shm
