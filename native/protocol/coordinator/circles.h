// Finds ranks that wait for each other in a circle. Part of the coordinator, which tells it what ranks say and sends
// what it wants to be said.
//
// A rank is blocked when nothing there can call anything before one of the operations that it waits for is done. It
// says so (WAITS) when that has been so for a while. Once blocked ranks may be missing from what others wait for, all
// of them are asked (PROBE) which of these operations they have called, and whether they have been blocked ever since.
// Those that have were so all at the same moment, the one between the last WAITS and the first PROBE. Of these the
// ranks are left, one after the other, that wait for an operation which lacks none of those that remain. Who remains
// can never go on: each waits only for operations that lack one who cannot call. That stays true whatever the others
// do, so it may be said at leisure (CIRCLE).
//
// Whoever does not answer within a second counts as not blocked until it says something again. In doubt nothing is
// said.
//
// That all but a few of many ranks wait is what happens in every step, so it must cost little: they are looked at a few
// times a second at most, however many say something, in as many steps as there are waits and members (standstill.h);
// and each rank is asked, and told, of operations of its own groups alone.
//
//   What is kept = the sum of what blocked ranks wait for <= the job's `waits` table; at most one of these is awaited:
//   the next look, the next question, the end of a question; who is asked has answered of all or of nothing.
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

  // What is to be sent now. `waits` and `calls` come from the network: they are checked. `waits` for which there is no
  // room must not come here.
  Messages hear(std::uint32_t rank, wire::Waits waits, Time now);
  Messages hear(std::uint32_t rank, const wire::Calls& calls, Time now);
  // It is not blocked: it has left or is lost, say.
  void forget(std::uint32_t rank);
  // Whether so much more may be kept of what ranks wait for (JobConfig::Tables::waits).
  bool has_room(std::size_t bytes) const { return kept_ + bytes <= config_.tables.waits; }
  // What is kept of a rank that waits for this.
  static std::size_t bytes_of(const wire::Waits& waits);
  Messages on_time(Time now);
  Time deadline() const { return std::min({until_, ask_at_, look_at_}); }

  bool is_blocked(std::uint32_t rank) const { return blocked_.count(rank) > 0; }

  // What all of it has cost until now: for tests.
  std::uint64_t steps() const { return steps_; }
  void check_invariants() const;

 private:
  struct Blocked {
    wire::Waits waits;
    std::size_t bytes = 0;  // of these
    bool answered = false;
    bool is_silent = false;            // it has not answered in time
    std::vector<std::uint32_t> asked;  // which of the operations that are asked about; none: it is not asked
    std::vector<bool> called;          // which of these
  };

  bool all_have_answered() const;
  // Whose waits were not all known when the ranks were asked is not believed to be stuck.
  bool is_asked_about(const wire::Wait& wait) const;
  // Who may be in a circle as far as is known.
  Standstill suspects() const;
  void look(Time now);
  Messages ask(Time now);
  Messages conclude(Time now);
  // These operations by rank of the job, of those that it is a member of. None if there are too many.
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_member(const std::vector<const wire::Wait*>& waits);
  static void tell(std::uint32_t rank, const std::vector<const wire::Call*>& calls, const std::string& why,
                   Messages& messages);

  const JobConfig& config_;
  std::map<std::uint32_t, Blocked> blocked_;  // by rank
  std::size_t kept_ = 0;                      // bytes of what all of them wait for
  std::vector<wire::Call> asked_;             // what is asked about, in rising order
  std::uint32_t round_ = 0;
  Time look_at_ = never;  // never: nobody has become blocked, or somebody is suspected already
  Time ask_at_ = never;   // never: nobody is suspected, or they are asked
  Time until_ = never;    // never: nothing is asked
  bool again_ = false;    // somebody has become blocked meanwhile
  std::uint64_t steps_ = 0;
};

}  // namespace shoal
