#include "protocol/local/joined.h"

#include <algorithm>
#include <optional>

#include "base/invariant.h"
#include "protocol/joining.h"

namespace shoal::local {

bool Joined::has(const Place& place) const { return std::find(joined_.begin(), joined_.end(), place) != joined_.end(); }

void Joined::begin(std::uint32_t group, Time now) {
  const Hash128& id = calls_.group(group).id;
  if (has({own_, id})) {
    return;
  }
  joined_.emplace_back(own_, id);
  memory_.words(own_).open.fetch_add(1);
  outbox_.say(RecordKind::join, id);
  for (const Operation* const operation : calls_.uncalled(id)) {
    tell(*operation, now);
  }
}

void Joined::end(std::uint32_t group, bool is_heard) {
  const Hash128& id = calls_.group(group).id;
  if (std::erase(joined_, Place(own_, id)) == 0) {
    return;
  }
  memory_.words(own_).open.fetch_sub(1);
  if (is_heard) {
    outbox_.say(RecordKind::end_join, id);
  }
}

void Joined::note(std::uint32_t place, const Hash128& group, bool over) {
  if (over) {
    std::erase(joined_, Place(place, group));
  } else if (!has({place, group})) {
    joined_.emplace_back(place, group);
    world_.ring(place, false);
  }
}

void Joined::ring(const Hash128& group) {
  for (const auto& [place, id] : joined_) {
    if (place != own_ && id == group) {
      world_.ring(place, false);
    }
  }
}

void Joined::tell(const Operation& operation, Time now) {
  const std::optional<wire::Opening> opening = operation.any_opening();
  if (opening && is_told(*opening) && has({own_, opening->group})) {
    // One that has failed: all that are known have, and it is the first of them.
    const std::uint32_t caller = members_.rank_of(operation.calls.first());
    calls_.move_join(opening->group, now);
    world_.called(calls_.group_of(opening->group)->number, told_of(*opening, caller, members_.config()));
  }
}

void Joined::check_invariants() const {
  for (const Place& one : joined_) {
    SHOAL_INVARIANT(std::count(joined_.begin(), joined_.end(), one) == 1);
  }
}

}  // namespace shoal::local
