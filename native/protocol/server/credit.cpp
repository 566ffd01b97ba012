#include "protocol/server/credit.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"

namespace shoal::server {

Credit::Credit(const Terms& terms)
    : terms_(terms), window_(terms.window().credit), wanted_(window_), workers_(terms.ranks()) {
  for (Worker& one : workers_) {
    one.granted = window_;
  }
}

// A worker with the smallest window may send one segment, so that a small operation fits into any window.
bool Credit::covers(std::uint32_t rank, std::uint32_t bytes) const {
  const Worker& from = workers_[rank];
  return from.outstanding + std::min(bytes, terms_.window().segment) <= from.granted;
}

bool Credit::covers_eager(std::uint32_t rank, std::uint32_t bytes) const {
  return workers_[rank].eager + bytes <= terms_.config().eager;
}

void Credit::answer(std::uint32_t rank, std::uint32_t bytes, std::uint32_t eager) {
  workers_[rank].outstanding -= bytes;
  workers_[rank].eager -= eager;
}

std::uint32_t Credit::give_back(std::uint32_t rank, std::uint32_t spent) {
  Worker& to = workers_[rank];
  const std::uint32_t kept = std::min(spent, to.granted > window_ ? to.granted - window_ : 0);
  to.granted -= kept;
  return spent - kept;
}

void Credit::want(std::uint32_t window) {
  wanted_ = window;
  window_ = std::min(window, std::max(most_, terms_.window().credit));
}

bool Credit::limit(std::uint32_t most) {
  if (std::exchange(most_, most) == most) {
    return false;
  }
  want(wanted_);
  return true;
}

std::uint32_t Credit::raise(std::uint32_t rank) {
  Worker& to = workers_[rank];
  return to.granted < window_ ? window_ - std::exchange(to.granted, window_) : 0;
}

void Credit::begin_epoch() {
  window_ = wanted_ = terms_.window().credit;
  for (Worker& one : workers_) {
    one = {0, window_, 0};
  }
}

void Credit::check_invariants() const {
  const JobConfig& config = terms_.config();
  const std::uint32_t segment = terms_.window().segment;
  const std::uint32_t slack = std::max(config.segment, config.small) - segment;
  SHOAL_INVARIANT(window_ <= wanted_);
  SHOAL_INVARIANT(window_ >= segment);
  for (const Worker& worker : workers_) {
    SHOAL_INVARIANT(worker.outstanding <= std::uint64_t{worker.granted} + slack);
    SHOAL_INVARIANT(worker.eager <= config.eager);
    SHOAL_INVARIANT(worker.granted >= segment);
  }
}

}  // namespace shoal::server
