// How operations and groups are named on the wire, and where operations live: docs/protocol/format.md, Openings, and
// docs/protocol/lifecycle.md, "Where an operation lives".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/types.h"
#include "protocol/job.h"

namespace shoal {

// The name of operations without a name. The program may not use it.
inline constexpr const char* unnamed = "#";

// The names of the operations in which the ranks of a group wait for each other once they have joined, and then until
// none is joined any more (joining.h).
inline constexpr const char* join_name = "#join";
inline constexpr const char* joined_name = "#joined";
bool is_of_join(const std::string& name);

// Among leaders an all-gather may be two operations of one name (protocol/local/execution.h). This bit of the
// occurrence is set in the second. Programs do not count so far.
inline constexpr std::uint32_t second_of_leaders = std::uint32_t{1} << 31U;

// Why an operation cannot have this name; empty if it can. An empty name means no name.
std::string problem_with_name(const std::string& name);

// `made`: how many groups of these ranks and name were made before.
Hash128 group_id(const std::vector<std::uint32_t>& ranks, const std::string& name, std::uint64_t made);

// The group of all ranks.
Hash128 world_group_id(std::uint32_t size);

Hash128 operation_key(const Hash128& group, const std::string& name, std::uint32_t occurrence);

// The home server: one of those with a weight above zero.
std::uint32_t home_of(const Hash128& key, const JobConfig& config);

// Whether an operation of so many bytes goes round the ring instead of through servers.
bool takes_ring(const JobConfig& config, Collective collective, std::uint64_t bytes);

}  // namespace shoal
