#include "protocol/worker/lost_ranks.h"

#include <algorithm>

#include "base/invariant.h"

namespace shoal::worker {

namespace {

// How long the coordinator's word about a rank is waited for whose link broke before all of a transfer had come.
constexpr Time word_wait = 5 * second;

}  // namespace

void LostRanks::add_rank(std::uint32_t rank, const Status& why) {
  if (!job_has_ended()) {
    ranks_.emplace_back(rank, why);
  }
}

const Status* LostRanks::of_rank(std::uint32_t rank) const {
  const auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [rank](const auto& loss) { return loss.first == rank; });
  return found == ranks_.end() ? nullptr : &found->second;
}

void LostRanks::end_job(const Status& why) {
  if (!job_has_ended()) {
    end_of_job_ = why;
  }
}

Status LostRanks::of(const Group* group) const {
  const auto first = std::find_if(ranks_.begin(), ranks_.end(),
                                  [group](const auto& loss) { return group != nullptr && group->needs(loss.first); });
  return first == ranks_.end() ? end_of_job_ : first->second;
}

bool LostRanks::concern(const Group& group) const {
  return std::any_of(group.needed.begin(), group.needed.end(),
                     [this](std::uint32_t rank) { return of_rank(rank) != nullptr; });
}

void LostRanks::await_word_of(std::uint32_t rank) { awaited_.emplace(environment_.now() + word_wait, rank); }

std::optional<std::uint32_t> LostRanks::take_due() {
  if (deadline() > environment_.now() || awaited_.empty()) {
    return std::nullopt;
  }
  return awaited_.extract(awaited_.begin()).value().second;
}

void LostRanks::check_invariants() const {
  for (const auto& [rank, why] : ranks_) {
    SHOAL_INVARIANT(rank < environment_.config().size() && !why.ok());
  }
}

}  // namespace shoal::worker
