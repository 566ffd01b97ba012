// What is missing of an operation's shard where some members have results from an epoch before.
// docs/protocol/recovery.md, and docs/decisions/server-loss.md.
#pragma once

#include <vector>

#include "base/range.h"
#include "protocol/server/operation.h"
#include "protocol/server/segments.h"

namespace shoal::server {

// The pieces of the shard that somebody lacks, ascending: each as long as it is alike for all members.
std::vector<Piece> missing_pieces(const Operation& operation, Range shard);

}  // namespace shoal::server
