// The server's machine for one job and one lane: matches openings, admits operations, sums segments in member order,
// sends results, and keeps every worker within its credit. docs/protocol/lifecycle.md.
//
// Memory is bounded: for each worker at most `credit` bytes of contributions and `eager` bytes of inline data; for all,
// what tables may take (limits::tables_bytes). Beyond that new operations fail, on all their members; beyond twice as
// much, the link of the worker that opens another one ends. What is open has its room, also where the limit is lowered.
#pragma once

#include <cstdint>
#include <memory>

#include "base/buffer.h"
#include "protocol/job.h"
#include "protocol/machine.h"

namespace shoal {

class Server final : public Machine {
 public:
  // `index`: which server of the job this is. World and pool must outlive it.
  Server(const JobConfig& config, std::uint32_t index, ServerWorld& world, BufferPool& pool);
  ~Server() override;

  void attach_worker(LinkId link, std::uint32_t rank);

  Placement on_header(LinkId link, const wire::Header& header) override;
  Buffer spare(std::size_t bytes) override;
  Status on_payload(LinkId link) override;
  void on_sent(Token token) override;
  void on_summed(Token token) override;
  void on_lost(LinkId link, const Status& why) override;
  void on_time(Time now) override;
  Time deadline() const override;

  // From now on: what tables may take, instead of what the configuration says, and what no worker's credit exceeds,
  // whatever the job says; but it is never less than at first.
  void limit(std::size_t table_bytes, std::uint32_t most_credit);

  // Operations it knows of, tombstones included, and what tables take: for tests and limits.
  std::size_t operations() const;
  std::size_t table_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
