#include "protocol/server/epochs.h"

#include <string>

#include "base/invariant.h"

namespace shoal::server {

using wire::Header;
using wire::Type;

bool Epochs::is_stale(const Header& header) const {
  return header.epoch < number_ && header.type != Type::leave && header.type != Type::group &&
         header.type != Type::epoch;
}

Status Epochs::check(std::uint32_t rank, const Header& header) const {
  const Worker& from = workers_[rank];
  if (header.type == Type::epoch) {
    const bool ends = (header.flags & wire::flag_reopened) != 0;
    const bool is_next = ends ? header.epoch == from.said && !from.reopened : header.epoch > from.said;
    return is_next ? Status{} : refused("EPOCH " + std::to_string(header.epoch) + ", which is not the next");
  }
  const bool of_any = header.type == Type::leave || header.type == Type::group;
  if (of_any || is_stale(header) || (header.epoch == number_ && from.said == number_)) {
    return {};
  }
  return refused("epoch " + std::to_string(header.epoch) + " has not been announced");
}

void Epochs::check_invariants() const {
  for (const Worker& worker : workers_) {
    SHOAL_INVARIANT(worker.said <= number_);
    SHOAL_INVARIANT(worker.reopened || worker.said > 0);
  }
}

}  // namespace shoal::server
