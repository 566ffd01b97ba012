#include "protocol/server/absence.h"

#include "base/invariant.h"

namespace shoal::server {

namespace {

// How long the coordinator's word about a rank whose link broke is waited for. It decides, also when it stood still for
// a while; only of the loss of a rank's goodbye it never hears.
constexpr Time longest_wait = 60 * second;

}  // namespace

Status Absence::status(const std::string& operation, std::uint32_t rank) const {
  const Code code = absence_[rank];
  const std::string why = code == Code::peer_left ? ", which has left the job normally"
                                                  : ", which has lost its connection to " + terms_.name();
  return Status::error(code, "'" + operation + "' needs " + rank_text(rank, terms_.config()) + why,
                       static_cast<std::int32_t>(rank));
}

void Absence::lose(std::uint32_t rank, Time now) {
  if (absence_[rank] != Code::peer_left) {
    waited_for_.emplace(now + longest_wait, rank);
  }
}

std::optional<std::uint32_t> Absence::next_lost(Time now) {
  if (deadline() > now) {
    return std::nullopt;
  }
  const std::uint32_t rank = waited_for_.begin()->second;
  waited_for_.erase(waited_for_.begin());
  absence_[rank] = Code::peer_lost;
  return rank;
}

void Absence::check_invariants() const {
  SHOAL_INVARIANT(waited_for_.size() <= absence_.size());
  for (const auto& [until, rank] : waited_for_) {
    SHOAL_INVARIANT(absence_[rank] == Code::ok);
  }
}

}  // namespace shoal::server
