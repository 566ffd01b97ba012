// The ranks that this worker knows to be lost, and why the job has ended, if it has.
//
//   No rank is added after the end of the job. They are in the order of their loss: every later loss may be a
//   consequence of the first.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "protocol/worker/environment.h"
#include "protocol/worker/groups.h"

namespace shoal::worker {

class LostRanks {
 public:
  explicit LostRanks(const Environment& environment) : environment_(environment) {}

  // No effect after the end of the job.
  void add_rank(std::uint32_t rank, const Status& why);
  const std::vector<std::pair<std::uint32_t, Status>>& ranks() const { return ranks_; }
  // Why the rank was lost; null: it is not known to be lost.
  const Status* of_rank(std::uint32_t rank) const;
  // The first reason counts.
  void end_job(const Status& why);
  const Status& end_of_job() const { return end_of_job_; }
  bool job_has_ended() const { return !end_of_job_.ok(); }

  // Why operations of this group cannot work any more; ok: nothing that they need is lost. Null: the group is not
  // known.
  Status of(const Group* group) const;
  // Whether a rank that the group needs is lost.
  bool concern(const Group& group) const;

  // The link to this rank broke, and the coordinator has not said what became of it. After a while take_due() returns
  // the rank, and operations that lack its blocks fail.
  void await_word_of(std::uint32_t rank);
  std::optional<std::uint32_t> take_due();
  Time deadline() const { return awaited_.empty() ? never : awaited_.begin()->first; }

  void check_invariants() const;

 private:
  const Environment& environment_;
  std::vector<std::pair<std::uint32_t, Status>> ranks_;
  Status end_of_job_;                                 // not ok: nothing works any more
  std::set<std::pair<Time, std::uint32_t>> awaited_;  // ranks, by when they are due
};

}  // namespace shoal::worker
