// Two operations of one key: of a group of ranks, and of the leaders that speak for them. Some nodes have called what
// goes by way of their leaders, and others what each rank opens for itself. Neither can ever be complete, so the home
// fails both, and says who called what.
//
// Where openings of one operation differ the text is made here too: whoever reads it knows ranks, not leaders.
#pragma once

#include <cstddef>
#include <string>

#include "protocol/job.h"
#include "protocol/server/groups.h"
#include "protocol/server/operation.h"

namespace shoal::server {

// Whether operations of these groups can have one key: one group has leaders of ranks of the other.
bool can_be_rivals(const Group& one, const Group& other);

// What every rank called, and who has not called yet: the text of a Mismatch. `rival`: null if there is none.
std::string mismatch_text(const Operation& operation, const Operation* rival, const JobConfig& config);

// Whether the member will never open the operation, since it, or the leader of its node, has opened the rival.
bool went_to_rival(const Operation& operation, std::size_t index, const Operation& rival, const JobConfig& config);

}  // namespace shoal::server
