#include "protocol/coordinator/reports.h"

#include "base/invariant.h"

namespace shoal {

namespace {

constexpr Time report_wait = second / 2;

}  // namespace

void Reports::add(Report report, Time now) {
  if (reported_.emplace(report.loss.kind, report.loss.index).second) {
    waiting_.emplace(now + report_wait, std::move(report));
  }
}

std::optional<Report> Reports::next(Time now) {
  if (deadline() > now) {
    return std::nullopt;
  }
  Report report = std::move(waiting_.begin()->second);
  waiting_.erase(waiting_.begin());
  return report;
}

void Reports::check_invariants() const {
  SHOAL_INVARIANT(waiting_.size() <= reported_.size());
  for (const auto& [when, report] : waiting_) {
    SHOAL_INVARIANT(reported_.count({report.loss.kind, report.loss.index}) > 0);
  }
}

}  // namespace shoal
