// Which openings are valid at a server, as far as the opening itself tells (docs/protocol/format.md, Openings).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "protocol/server/groups.h"
#include "protocol/server/terms.h"
#include "wire/opening.h"

namespace shoal::server {

// `carried`: the worker may open operations of an earlier epoch. Only those say how far they have
// come.
Status check_opening(const wire::Opening& opening, const Group& group, bool carried, const Terms& terms);

// The longest OPEN.
std::size_t opening_limit(bool carried, const Terms& terms);

}  // namespace shoal::server
