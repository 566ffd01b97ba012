// Losses that workers have reported. Each waits until the rank in question, or the rank that holds the server in
// question, has had time to speak for itself: it may have left, or have a better reason.
//
//   Only the first report about a rank or server counts. deadline() is a time while a report waits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "protocol/machine.h"

namespace shoal {

struct Report {
  std::uint32_t by = 0;
  wire::Loss loss;
};

class Reports {
 public:
  void add(Report report, Time now);
  // The next report that has waited long enough.
  std::optional<Report> next(Time now);
  Time deadline() const { return waiting_.empty() ? never : waiting_.begin()->first; }

  void check_invariants() const;

 private:
  std::multimap<Time, Report> waiting_;
  std::set<std::pair<wire::Loss::Kind, std::uint32_t>> reported_;
};

}  // namespace shoal
