// What members must agree on when they call an operation, and how they hear that they do not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/job.h"
#include "wire/opening.h"

namespace shoal {

struct Submission;

// Copies what the program asked for into the opening, except `bytes`, which the caller fills in.
void take_arguments(wire::Opening& opening, const Submission& submission);

// Whether two openings of one key agree; if not, `what` names the attribute that differs.
bool agree(const wire::Opening& a, const wire::Opening& b, std::string& what);

// "mean float32 [3, 4] allreduce", for messages.
std::string describe(const wire::Opening& opening);

// The text of a Mismatch: what every member sent, and who has not called yet. `openings`: by member, null for a member
// that has not called; at least one has. `ranks`: of the members. `by_nodes`: of members without an opening it is known
// only that not all of their node have called.
std::string mismatch_text(const std::vector<const wire::Opening*>& openings, const std::vector<std::uint32_t>& ranks,
                          bool by_nodes, const JobConfig& config);

// The status that all members get for an operation that failed on a rank before it began. An opening with a code says
// itself which one: of a rank that heard it from another, which may have it from a third.
Status failed_before(const wire::Opening& opening, std::uint32_t rank, const JobConfig& config);

}  // namespace shoal
