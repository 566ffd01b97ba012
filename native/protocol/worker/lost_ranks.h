// What this worker knows to be lost: ranks, and what ended the job.
//
//   ranks are lost up to the end of the job; of what is lost first, all that came after may be a consequence
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

  // In the order of their loss. After the end of the job none are added.
  void add_rank(std::uint32_t rank, const Status& why);
  const std::vector<std::pair<std::uint32_t, Status>>& ranks() const { return ranks_; }
  // Why it was lost; null: it is not known to be.
  const Status* of_rank(std::uint32_t rank) const;
  // The first reason counts.
  void end_job(const Status& why);
  const Status& end_of_job() const { return end_of_job_; }
  bool job_has_ended() const { return !end_of_job_.ok(); }

  // Why operations of this group cannot work any more; ok: nothing that they need is lost. Null: of no known group.
  Status of(const Group* group) const;
  // Whether a rank that the group needs is lost.
  bool concern(const Group& group) const;

  // The link to this rank broke before the coordinator has said anything of it. It is waited for that for a while: then
  // take_due() returns the rank, and operations that lack what it sent fail.
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
