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

// What the caller asked for, as others hear it. `bytes` is the caller's to fill in.
void take_arguments(wire::Opening& opening, const Submission& submission);

// Whether two openings of one key agree; `what` is then the attribute that does not.
bool agree(const wire::Opening& a, const wire::Opening& b, std::string& what);

// "mean float32 [3, 4] allreduce", for messages.
std::string describe(const wire::Opening& opening);

// The text of a Mismatch: what every member sent, and who has not called yet. `openings`: by member, null where it has
// not called; one has. `ranks`: of the members.
std::string mismatch_text(const std::vector<const wire::Opening*>& openings, const std::vector<std::uint32_t>& ranks,
                          const JobConfig& config);

// What the others hear of an operation that failed on a rank before it began.
Status failed_before(const wire::Opening& opening, std::uint32_t rank, const JobConfig& config);

}  // namespace shoal
