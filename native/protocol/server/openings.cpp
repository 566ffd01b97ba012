#include "protocol/server/openings.h"

#include <cstdint>
#include <string>
#include <vector>

#include "base/limits.h"
#include "protocol/collectives.h"
#include "reduce/reduce.h"

namespace shoal::server {

namespace {

// Whether these sizes are possible and add up to exactly `bytes`.
bool add_up(const std::vector<std::int64_t>& splits, std::uint64_t bytes) {
  for (std::int64_t split : splits) {
    if (split < 0 || static_cast<std::uint64_t>(split) > bytes) {
      return false;
    }
    bytes -= static_cast<std::uint64_t>(split);
  }
  return bytes == 0;
}

bool splits_fit(const wire::Opening& opening, std::size_t members) {
  const CollectiveTraits& traits = traits_of(opening.collective);
  const bool has_splits = traits.gathers() && !traits.same_blocks && !opening.failed;
  return !has_splits || (opening.splits.size() == members && add_up(opening.splits, opening.bytes));
}

bool is_carried(const wire::Opening& opening) {
  return opening.finished || opening.exchange != 0 || !opening.have.empty();
}

// The number of a block transfer begins with the index of the server that gave it.
bool exchange_fits(const wire::Opening& opening, const Terms& terms) {
  const std::uint64_t server = (opening.exchange >> 40U) - 1;
  return opening.exchange == 0 || (server < terms.config().servers() && terms.is_transferred(opening));
}

}  // namespace

Status check_opening(const wire::Opening& opening, const Group& group, bool carried, const Terms& terms) {
  const std::size_t members = group.ranks.size();
  const auto refuse = [&opening](const std::string& what) { return refused("OPEN of '" + opening.name + "' " + what); };
  if (!carried && is_carried(opening)) {
    return refuse("as one of an epoch before, of which all had come");
  }
  if (!exchange_fits(opening, terms)) {
    return refuse("with an exchange that it cannot have");
  }
  // Inline data is the first segment; one that contributes nothing sends none.
  if (opening.inline_bytes != 0 && opening.inline_bytes != terms.inline_of(opening, group.senders)) {
    return refuse("with another part of its data than the first segment");
  }
  if (traits_of(opening.collective).has_root() && opening.root >= members) {
    return refuse("with a root that is not in the group");
  }
  if (!splits_fit(opening, members)) {
    return refuse("with splits that do not add up");
  }
  const bool reduces = traits_of(opening.collective).reduces;
  if (!opening.failed && reduces && !reducible(opening.wire_dtype(), opening.op)) {
    return refuse(std::string("with operator ") + name_of(opening.op) + " for " + name_of(opening.wire_dtype()));
  }
  if (!opening.failed && opening.dtype != DType::none && opening.bytes % size_of(opening.wire_dtype()) != 0) {
    return refuse("with a part of an element");
  }
  if (terms.lives_at_home(opening) && !terms.is_home_of(opening.key)) {
    return refuse("whose home is another server");
  }
  return {};
}

std::size_t opening_limit(bool carried, const Terms& terms) {
  return wire::opening_limit(terms.ranks(), terms.config().most_inline()) + (carried ? 16 * limits::ranges : 0);
}

}  // namespace shoal::server
