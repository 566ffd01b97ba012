// What a rank that has joined does in the place of its program: it calls what the others call, with zeros, so that
// everything else is as if it had more data (docs/protocol/lifecycle.md, "Joined ranks").
//
// Machines tell what others have called: the worker what servers say, a local group what it reads. The driver makes the
// call with the arrays that it needs.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/job.h"
#include "protocol/machine.h"
#include "protocol/submission.h"
#include "wire/opening.h"

namespace shoal {

// Whether a joined rank is to hear of it. The operations in which joined ranks wait for each other each calls by
// itself.
bool is_told(const wire::Opening& opening);

// The opening of `caller`, a rank of the job, as a joined rank hears of it: of one that failed there before it began,
// with the status that all members get, so that whoever calls it for others names the rank that it failed on.
wire::Opening told_of(wire::Opening opening, std::uint32_t caller, const JobConfig& config);

// The call, without arrays: an all-reduce needs one of `zero_bytes`, all zero, for input and output; of anything else
// that is 0. What a joined rank cannot do it calls as failed, so that all members hear why. `group`: this rank's number
// of the group.
Submission call_of_joined(const wire::Opening& opening, std::uint32_t group, Time timeout, std::uint64_t& zero_bytes);

// What has failed on a rank before it began, or is more than this rank has memory for.
void fail_call_of_joined(Submission& call, std::string why);

}  // namespace shoal
