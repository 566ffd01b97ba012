#include "protocol/server/operation.h"

#include <algorithm>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::server {

Operation::Operation(std::uint64_t serial, const Hash128& key, const Group& group, bool is_home)
    : serial_(serial), key_(key), group_(group), is_home_(is_home), members_(group.ranks.size()) {}

std::size_t Operation::first() const {
  const auto first = std::find_if(members_.begin(), members_.end(), [](const Member& one) { return one.opened; });
  return static_cast<std::size_t>(first - members_.begin());
}

bool Operation::is_contributor(std::size_t index) const {
  return contributes(attributes().collective, index, attributes().root);
}

Range Operation::wanted(std::size_t index) const {
  return received_by(attributes(), members_.size(), index, group_.senders);
}

bool Operation::lacks(std::size_t index, std::uint64_t number) const {
  return segments_.is_resumed() ? segments_.receives(index, number) : !members_[index].opening.finished;
}

bool Operation::has_results() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& one) { return one.opening.finished || !one.opening.have.empty(); });
}

void Operation::open(std::size_t index, std::uint64_t number, wire::Opening opening, Contribution inline_data,
                     std::uint32_t eager) {
  Member& member = members_[index];
  member.opened = true;
  member.number = number;
  member.inlined = opening.inline_bytes == opening.bytes;
  member.inline_data = std::move(inline_data);
  member.eager = eager;
  member.opening = std::move(opening);
  ++opened_;
}

void Operation::discard_inline_data() {
  for (Member& member : members_) {
    member.inline_data = Contribution{};
  }
}

void Operation::flow(Segments segments, Queue::Place place) {
  state_ = State::flowing;
  segments_ = std::move(segments);
  place_ = std::move(place);
}

void Operation::close() {
  state_ = State::closing;
  const Queue::Place gone = std::exchange(place_, {});
}

void Operation::fail(Status why) {
  state_ = State::failed;
  failure_ = std::move(why);
  const Queue::Place gone = std::exchange(place_, {});
}

void Operation::check_invariants() const {
  std::size_t opened = 0;
  for (const Member& member : members_) {
    opened += member.opened ? 1 : 0;
    SHOAL_INVARIANT(member.opened || (!member.dropped && !member.ended && member.eager == 0));
    SHOAL_INVARIANT(!member.dropped || member.eager == 0);
    SHOAL_INVARIANT(!member.inline_data.buffer || is(State::assembling));
  }
  SHOAL_INVARIANT(opened == opened_);
  SHOAL_INVARIANT(opened > 0);
  SHOAL_INVARIANT(!is(State::flowing) || opened == members_.size());
  SHOAL_INVARIANT(is(State::failed) || failure_.ok());
  SHOAL_INVARIANT(is(State::flowing) != segments_.all_answered() || is(State::failed));
  SHOAL_INVARIANT(is(State::flowing) || queued() == 0);
  segments_.check_invariants();
}

}  // namespace shoal::server
