// The coordinator's machine, on rank 0's worker: the one place that decides who is in the job and which servers average
// how much. It hears of departures and losses on the control links and tells every worker. docs/protocol/recovery.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/job.h"
#include "protocol/machine.h"

namespace shoal {

class Coordinator final : public Machine {
 public:
  Coordinator(const JobConfig& config, CoordinatorWorld& world);
  ~Coordinator() override;

  // The control link of a rank's worker, rank 0's own among them.
  void attach_worker(LinkId link, std::uint32_t rank);

  Placement on_header(LinkId link, const wire::Header& header) override;
  Status on_payload(LinkId link) override;
  void on_sent(Token token) override;
  void on_lost(LinkId link, const Status& why) override;
  void on_time(Time now) override;
  Time deadline() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
