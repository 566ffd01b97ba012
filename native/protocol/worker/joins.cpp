#include "protocol/worker/joins.h"

#include "base/invariant.h"

namespace shoal::worker {

void Joins::begin(std::uint32_t group, std::uint32_t as) {
  const Group* const known = groups_.find(group);
  if (known != nullptr && known->size() > 1 && joined_.emplace(group, as).second) {
    tell(group, 0);
  }
}

void Joins::end(std::uint32_t group) {
  if (joined_.erase(group) > 0) {
    tell(group, wire::flag_over);
  }
}

void Joins::tell_again() {
  for (const auto& [group, as] : joined_) {
    tell(group, 0);
  }
}

// Nothing follows a goodbye.
void Joins::tell(std::uint32_t group, std::uint8_t flags) const {
  const JobConfig& config = environment_.config();
  const Group& known = groups_.at(group);
  for (std::uint32_t server = 0; server < config.servers() && !goodbye_.is_said(); ++server) {
    if (config.weights[server] > 0) {
      frames_.announce(server, group, known);
      frames_.send(server, {.type = wire::Type::join, .flags = flags}, wire::encode_join(known.id));
    }
  }
}

std::optional<Joins::Joined> Joins::find(const Hash128& group) const {
  for (const auto& [number, as] : joined_) {
    if (groups_.at(number).id == group) {
      return Joined{number, as};
    }
  }
  return std::nullopt;
}

void Joins::check_invariants() const {
  for (const auto& [group, as] : joined_) {
    SHOAL_INVARIANT(groups_.find(group) != nullptr && groups_.find(as) != nullptr);
    SHOAL_INVARIANT(groups_.at(group).size() > 1);
  }
}

}  // namespace shoal::worker
