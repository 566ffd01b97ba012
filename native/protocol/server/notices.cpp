#include "protocol/server/notices.h"

#include <utility>

#include "base/invariant.h"
#include "wire/epoch.h"

namespace shoal::server {

namespace {

constexpr Time along_after = second / 200;
constexpr Time alone_after = second / 50;

}  // namespace

bool Notices::add(std::uint32_t rank, std::uint64_t number, bool at_once, Time now) {
  Worker& to = workers_[rank];
  if (to.numbers.empty()) {
    to.since = now;
  }
  to.numbers.push_back(number);
  if (at_once || to.numbers.size() >= wire::have_at_once) {
    return true;
  }
  if (deadline_ == never) {
    deadline_ = now + alone_after;
  }
  return false;
}

bool Notices::goes_along(std::uint32_t rank, Time now) const {
  const Worker& to = workers_[rank];
  return !to.numbers.empty() && now - to.since >= along_after;
}

std::vector<std::uint64_t> Notices::take(std::uint32_t rank) { return std::exchange(workers_[rank].numbers, {}); }

bool Notices::on_time(Time now) {
  if (deadline_ > now) {
    return false;
  }
  deadline_ = never;
  return true;
}

void Notices::clear() {
  deadline_ = never;
  for (Worker& one : workers_) {
    one.numbers.clear();
  }
}

void Notices::check_invariants() const {
  for (const Worker& worker : workers_) {
    SHOAL_INVARIANT(worker.numbers.size() < wire::have_at_once);
    SHOAL_INVARIANT(worker.numbers.empty() || deadline_ != never);
  }
}

}  // namespace shoal::server
