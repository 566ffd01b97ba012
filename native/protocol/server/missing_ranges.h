// What is missing of an operation's shard where some members have results from an epoch before.
// docs/protocol/recovery.md, and docs/decisions/server-loss.md.
#pragma once

#include <vector>

#include "base/range.h"
#include "protocol/server/operation.h"
#include "protocol/server/segments.h"

namespace shoal::server {

// The ranges of the shard that somebody lacks, ascending. A range ends where a member begins or ceases to lack it.
std::vector<MissingRange> missing_ranges(const Operation& operation, Range shard);

}  // namespace shoal::server
