// Finds ranks that wait for each other in a circle. A part of the coordinator, which passes on what ranks say and sends
// the answers.
//
// A rank is blocked when nothing there can call anything before one of the operations that it waits for is done. It
// says so (WAITS) when that has been so for a while. If the calls of blocked ranks may be missing from operations that
// others wait for, all blocked ranks are asked (PROBE) which of these operations they have called, and whether they
// have been blocked ever since. The ranks that answer yes were all blocked at one moment, between the last WAITS and
// the first PROBE. Then each rank that waits for an operation which every remaining rank has called is dropped, and so
// on. The ranks that remain can never go on: each waits only for operations that lack the call of a rank which cannot
// call. That stays true whatever the others do, so there is no hurry to say it (CIRCLE).
//
// A rank that does not answer within a second counts as not blocked until it says something again. In doubt nothing is
// said.
//
// In every step of a training all but a few ranks wait, so looking must be cheap: at most a few times a second, in
// linear time (standstill.h). Each rank is asked and told only of operations of its own groups.
//
//   kept bytes = the sum of what blocked ranks wait for <= the job's `waits` table
//   at most one of these is awaited: the next look, the next question, the end of a question
//   a rank that was asked has answered about all calls or none
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/coordinator/standstill.h"
#include "protocol/job.h"
#include "protocol/machine.h"
#include "wire/waits.h"

namespace shoal {

class Circles {
 public:
  struct Message {
    std::uint32_t rank = 0;
    wire::Type type{};
    wire::Bytes bytes;
  };
  using Messages = std::vector<Message>;

  explicit Circles(const JobConfig& config) : config_(config) {}

  // Returns what is to be sent now. `waits` and `calls` come from the network, and are checked here. The caller has
  // made sure that there is room for `waits`.
  Messages hear(std::uint32_t rank, wire::Waits waits, Time now);
  Messages hear(std::uint32_t rank, const wire::Calls& calls, Time now);
  // The rank is not blocked: it has left or is lost, say.
  void forget(std::uint32_t rank);
  // Whether so many bytes more of WAITS may be kept (JobConfig::Tables::waits).
  bool has_room(std::size_t bytes) const { return kept_ + bytes <= config_.tables.waits; }
  // How many bytes are kept for a rank with these WAITS.
  static std::size_t bytes_of(const wire::Waits& waits);
  Messages on_time(Time now);
  Time deadline() const { return std::min({until_, ask_at_, look_at_}); }

  bool is_blocked(std::uint32_t rank) const { return blocked_.count(rank) > 0; }

  // How many steps looking has taken so far: for tests.
  std::uint64_t steps() const { return steps_; }
  void check_invariants() const;

 private:
  struct Blocked {
    wire::Waits waits;
    std::size_t bytes = 0;  // of these
    bool answered = false;
    bool is_silent = false;            // it has not answered in time
    std::vector<std::uint32_t> asked;  // calls that it is asked about, as indices in asked_; none: it is not asked
    std::vector<bool> called;          // by index in `asked`: its answer
  };

  bool all_have_answered() const;
  // A rank counts as stuck only if all its waits were known when the ranks were asked.
  bool is_asked_about(const wire::Wait& wait) const;
  // The ranks that may be in a circle as far as is known.
  Standstill suspects() const;
  void look(Time now);
  Messages ask(Time now);
  Messages conclude(Time now);
  // These operations by member. Empty if there are too many.
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_member(const std::vector<const wire::Wait*>& waits);
  static void tell(std::uint32_t rank, const std::vector<const wire::Call*>& calls, const std::string& why,
                   Messages& messages);

  const JobConfig& config_;
  std::map<std::uint32_t, Blocked> blocked_;  // by rank
  std::size_t kept_ = 0;                      // bytes of what all of them wait for
  std::vector<wire::Call> asked_;             // calls that are asked about, in rising order
  std::uint32_t round_ = 0;
  Time look_at_ = never;  // never: no rank has become blocked, or some are suspected already
  Time ask_at_ = never;   // never: no rank is suspected, or the suspects are being asked
  Time until_ = never;    // the end of a question; never: nothing is asked
  bool again_ = false;    // a rank has become blocked while others were asked
  std::uint64_t steps_ = 0;
};

}  // namespace shoal
