// The server's machine for one job and one lane: matches openings, admits operations, sums segments in member order,
// sends results, and keeps every worker within its credit. docs/protocol/lifecycle.md.
//
// Server checks frames and hands them to its parts. Lifecycle (lifecycle.h) decides what becomes of operations.
//
//   A worker that has left is absent. A worker whose link broke, or that has not begun this epoch, has no operation
//   open here.
//
// Memory is bounded: for each worker by `credit` bytes of contributions and `eager` bytes of inline data (and, of
// gathers that are opened again in a new epoch, `small` bytes each), for tables by limits::tables_bytes. Beyond that,
// new operations fail on all their members. Beyond twice as much, a worker that opens another one loses its link. Open
// operations keep their room, also if the limit is lowered.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "protocol/job.h"
#include "protocol/machine.h"
#include "protocol/server/absence.h"
#include "protocol/server/credit.h"
#include "protocol/server/epochs.h"
#include "protocol/server/groups.h"
#include "protocol/server/joined.h"
#include "protocol/server/lifecycle.h"
#include "protocol/server/links.h"
#include "protocol/server/progress.h"
#include "protocol/server/terms.h"

namespace shoal {

class Server final : public Machine {
 public:
  // `index`: which server of the job this is. World and pool must outlive it.
  Server(const JobConfig& config, std::uint32_t index, ServerWorld& world, BufferPool& pool);

  void attach_worker(LinkId link, std::uint32_t rank) { links_.attach(link, rank); }

  Placement on_header(LinkId link, const wire::Header& header) override;
  Buffer spare(std::size_t bytes) override { return pool_.take(bytes); }
  Status on_payload(LinkId link) override;
  void on_sent(Token token) override { lifecycle_.written(links_.written(token)); }
  void on_summed(Token token) override { lifecycle_.summed(token); }
  void on_lost(LinkId link, const Status& why) override;
  void on_time(Time now) override;
  Time deadline() const override;
  void check_invariants() const override;

  // From now on: what tables may take, in place of the configuration's, and the most credit of a worker, whatever the
  // job says. Credit is never less than at first.
  void limit(std::size_t table_bytes, std::uint32_t most_credit);

  // How many operations it knows of, tombstones included, and how many bytes tables take: for tests and limits.
  std::size_t operations() const { return lifecycle_.operations().size(); }
  std::size_t table_bytes() const { return lifecycle_.operations().bytes(); }

 private:
  Status check_header(std::uint32_t rank, const wire::Header& header);
  Status check_window(std::uint32_t rank, const wire::Header& header) const;
  Status hear_open(std::uint32_t rank);
  Status hear_fail(std::uint32_t rank);
  Status hear_group(std::uint32_t rank);
  Status hear_join(std::uint32_t rank);
  Status hear_epoch(std::uint32_t rank);
  void hear_window(const wire::Header& header);
  void hear_ask(std::uint32_t rank, std::uint64_t number);
  void hear_leave(std::uint32_t rank);
  void begin_epoch(std::uint32_t number, const std::vector<std::uint32_t>& weights);
  // Grants workers below the window the difference.
  void raise_credit();

  BufferPool& pool_;
  Time now_ = 0;
  server::Terms terms_;
  server::Epochs epochs_;
  server::Groups groups_;
  server::Absence absence_;
  server::Joined joined_;
  server::Progress progress_;
  server::Links links_;
  server::Credit credit_;
  server::Lifecycle lifecycle_;
};

}  // namespace shoal
