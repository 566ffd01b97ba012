// Texts about operations that do not move: for warnings, and for the error of an operation that times out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/worker/operation.h"
#include "wire/late.h"

namespace shoal::worker {

// The servers' answers to the question whom an operation waits for, by its number and the server. None: the server has
// not answered.
using Answers = std::map<std::pair<std::uint64_t, std::uint32_t>, std::optional<wire::Late>>;

// Whom an operation waits for, what is known of them, and what the others do.
std::string stall_reason(const Operation& operation, const Answers& answers, const JobConfig& config);

// The text of operations that wait for the same.
std::string stall_text(const std::vector<const Operation*>& operations);

}  // namespace shoal::worker
