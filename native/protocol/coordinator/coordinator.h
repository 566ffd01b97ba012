// The coordinator's machine, on rank 0's worker: the one place that decides who is in the job and which servers average
// how much. It hears of departures and losses on the control links and tells every worker. docs/protocol/recovery.md.
//
// It decides about ranks itself. Its part Servers decides about servers, and Circles about ranks that wait for each
// other.
//
//   WAITS, arriving and kept, take no more than the job's `waits` table.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/coordinator/circles.h"
#include "protocol/coordinator/inbox.h"
#include "protocol/coordinator/members.h"
#include "protocol/coordinator/reports.h"
#include "protocol/coordinator/servers.h"
#include "protocol/job.h"
#include "protocol/machine.h"

namespace shoal {

class Coordinator final : public Machine {
 public:
  Coordinator(const JobConfig& config, CoordinatorWorld& world);

  // The control link of a rank's worker, rank 0's own among them.
  void attach_worker(LinkId link, std::uint32_t rank) { members_.attach(link, rank); }

  Placement on_header(LinkId link, const wire::Header& header) override;
  Status on_payload(LinkId link) override;
  void on_sent(Token /*token*/) override {}
  void on_lost(LinkId link, const Status& why) override;
  void on_time(Time now) override;
  Time deadline() const override;
  void check_invariants() const override;

 private:
  Status hear_report(std::uint32_t by, wire::Loss loss);
  Status hear_reached(LinkId link);
  Status hear_waits(LinkId link);
  Status hear_calls(LinkId link);
  void act_on(const Report& report);
  void tell_its_node_that_it_is_gone(std::uint32_t rank);
  void lose_rank(std::uint32_t rank, Code code, std::string text);
  void pass_on(const Circles::Messages& messages);
  void warn_that_there_is_no_room();

  const JobConfig config_;
  CoordinatorWorld& world_;
  Time now_ = 0;
  Members members_;
  Inbox inbox_;
  Reports reports_;
  Servers servers_;
  Circles circles_;
  bool has_warned_ = false;  // that there is no room for what ranks wait for
};

}  // namespace shoal
