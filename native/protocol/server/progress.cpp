#include "protocol/server/progress.h"

#include <algorithm>
#include <limits>

#include "base/invariant.h"

namespace shoal::server {

using wire::Late;

void Progress::hear_opening(std::uint32_t rank, const wire::Opening& opening) {
  workers_[rank].last_opened = opening.collective;
  workers_[rank].last_name = opening.name;
}

void Progress::add_late(const Operation& operation, Time now, Late& late) const {
  for (std::size_t i = 0; i < operation.size(); ++i) {
    const std::uint32_t rank = operation.rank(i);
    if (operation.is(Operation::State::assembling) && !operation.member(i).opened) {
      add_late(rank, Late::Why::not_opened, now, late);
    } else if (operation.is(Operation::State::flowing) && operation.segments().holds_up(i)) {
      add_late(rank, Late::Why::owes_data, now, late);
    }
  }
}

void Progress::add_late(std::uint32_t rank, Late::Why why, Time now, Late& late) const {
  ++late.count;
  if (late.members.size() == wire::late_members) {
    return;
  }
  const Worker& of = workers_[rank];
  const Time silent = (now - of.heard) / (second / 1000);
  late.members.push_back(
      {rank, why, of.last_opened, of.last_name,
       static_cast<std::uint32_t>(std::clamp<Time>(silent, 0, std::numeric_limits<std::uint32_t>::max()))});
}

void Progress::check_invariants(Time now) const {
  for (const Worker& worker : workers_) {
    SHOAL_INVARIANT(worker.heard <= now);
  }
}

}  // namespace shoal::server
