// Carries out a plan: submits, watches, lets things go wrong, and says whether everything came out as it must.
//
// Promises checked in every run:
//   * every submitted handle is finished exactly once, and the run ends; before its goodbye no rank waits for
//     something that has come or cannot come;
//   * an operation without an error ends well, with results right to the bit;
//   * one that ranks disagree on, that failed somewhere or that somebody never calls ends so on every member, and the
//     message names who; one whose last call comes when its time is out ends the same on all members;
//   * a dead process ends the operations that need it, with PeerLost, and no others;
//   * arrays are not touched outside their bounds, nor after their handle is done;
//   * a rank that has joined calls with zeros whatever others call, once, whenever it has joined; it fails what it has
//     nothing for, on every member; servers tell nobody else anything;
//   * credit, eager data and the order of admission are kept, and all credit is back in the end (ledger.h); workers and
//     servers keep within their memory after every event, and nothing is left on them in the end;
//   * the coordinator's decisions are the same everywhere, it declares those lost that are gone and had not left, and
//     leaves no share to the others (decisions.h); a damaged header is always detected;
//   * the same plan and seed do the same, event by event: Outcome::digest.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "drivers/sim/arrays.h"
#include "drivers/sim/cluster.h"
#include "drivers/sim/decisions.h"
#include "drivers/sim/expected.h"
#include "drivers/sim/joins.h"
#include "drivers/sim/ledger.h"
#include "drivers/sim/network.h"
#include "drivers/sim/workload.h"

namespace shoal::sim {

// One handle that was finished.
struct Finish {
  std::uint32_t rank = 0;
  std::size_t operation = 0;
  Time when = 0;
  Status status;
};

struct Outcome {
  std::string violation;  // empty: all is well
  std::uint64_t events = 0;
  std::uint64_t digest = 0;  // of every frame sent and received and every handle's end, with their times
  Time ended_at = 0;
  std::vector<Finish> finishes;  // in the order of time
  std::uint64_t straight = 0;    // handles that ended well, and whose arrays other ranks of the machine have used
  std::vector<std::string> warnings;
};

// What an aborting rank says.
inline constexpr const char* abort_reason = "the loss is NaN";

class Simulation final : public Observer, public Application {
 public:
  // `seed` draws the schedule; trace: every event, for a person; may be null.
  Simulation(const Plan& plan, std::uint64_t seed, std::ostream* trace);

  Outcome run();

  void on_send(const End& from, const wire::Header& header, const Bytes& owned,
               std::span<const std::byte> borrowed) override;
  void on_arrival(const End& to, const wire::Header& header) override;
  void on_received(const End& to, const wire::Header& header) override;
  void on_read(const End& from, std::span<const std::byte> borrowed) override;
  void on_write(const End& to, std::span<const std::byte> memory) override;
  void on_refused(const End& at, const Status& why) override;
  void on_lost(const End& at) override;
  void violated(const std::string& what) override;

  void on_received(std::uint32_t rank, std::uint64_t handle, Range range) override;
  void on_finish(std::uint32_t rank, std::uint64_t handle, Status status) override;
  std::byte* on_allocate(std::uint32_t rank, std::uint64_t handle,
                         const std::vector<std::uint64_t>& block_bytes) override;
  void on_warning(std::uint32_t rank, const std::string& text) override;
  void on_called(std::uint32_t rank, std::uint32_t group, const wire::Opening& opening) override;
  void on_ended(std::uint32_t rank) override;
  void on_local_access(std::uint32_t rank, std::span<const std::byte> memory) override;
  void on_reached(std::uint32_t rank, std::span<const std::byte> memory, bool counts) override;
  void on_death(std::uint32_t rank) override;

 private:
  // One member's part in an operation, once submitted.
  struct Work {
    Array* input = nullptr;
    Array* output = nullptr;      // may be the input; null: none yet
    std::byte* result = nullptr;  // inside output
    std::size_t result_bytes = 0;
    bool awaits_input = false;
    Bytes received;                // of one in parts: what was said to be the result
    RangeSet told;                 // and where
    std::optional<Status> status;  // once finished
  };
  struct Life {
    // Joins that have begun and are not over, by the operation in which ranks wait for each other, and what the rank
    // waits for. And how many of its calls had ended when it called that.
    enum class Wait { for_own_calls, for_others, for_nobody_to_be_joined };
    std::map<std::size_t, Wait> joins;
    std::map<std::size_t, std::size_t> most_calls;
    Time waits_until = 0;                  // for calls of others, once all have joined
    std::set<std::uint32_t> failed_joins;  // groups in which it calls nothing more
    std::size_t next = 0;                  // of its steps
    std::uint32_t open = 0;
    std::vector<std::uint32_t> groups;  // plan's number → worker's number
    std::set<std::size_t> following;    // what it has submitted, and whose input comes once another one has ended
    bool leaving = false;
    Time leave_at = 0;
    bool left = false;
    bool ended = false;
    bool aborted = false;
    bool killed = false;
    bool exiting = false;
  };

  // Lives (simulation.cpp).
  void start(std::uint32_t rank);
  void go_on(std::uint32_t rank);
  void submit(std::uint32_t rank, std::size_t number);
  static std::size_t input_offset(const OperationPlan& operation, std::size_t member);
  void bring_input(std::uint32_t rank, std::size_t number);
  void contribute_in_parts(std::uint32_t rank, std::size_t number);
  void change_window(std::uint32_t rank, const CongestionController::Setting& window);
  void prepare(Work& work, const OperationPlan& operation, std::size_t member, const Bytes& input);
  Array& make_array(const OperationPlan& operation, std::size_t member, std::size_t bytes);
  void leave(std::uint32_t rank);
  void exit_if_done(std::uint32_t rank);
  void exit(std::uint32_t rank);
  void note_goodbye(std::uint32_t rank);
  // Arms the faults that wait for this rank's goodbye.
  void goodbye_begins(std::uint32_t rank);

  // Ranks that join (simulation_joins.cpp).
  void begin_join(std::uint32_t rank, std::size_t number);
  void go_on_joining(std::uint32_t rank);
  bool have_all_joined(std::uint32_t rank, std::size_t number);
  bool has_open_calls(std::uint32_t rank, std::uint32_t group);
  std::size_t calls_ended(std::uint32_t rank, std::uint32_t group);
  std::size_t most_calls(std::size_t join) const;
  void call_for_others(std::uint32_t rank, std::uint32_t group, const wire::Opening& opening);
  bool note_made_before(std::uint32_t rank, std::uint64_t handle, const Status& status);
  void check_joins();

  // Faults (simulation_faults.cpp).
  void strike(const Fault& fault);
  bool may_give_up() const;
  void kill_rank(std::uint32_t rank);
  void abort_rank(std::uint32_t rank);
  void break_some_link(std::uint32_t target);
  void break_some_server(std::uint32_t target);
  bool stands_by(std::uint32_t server) const;
  void break_some_standby(std::uint32_t target);
  void break_network(std::uint32_t rank, std::uint32_t which);
  void part(const Fault& fault);
  void delay_rank(std::uint32_t rank, Time duration);
  void kill_server(std::uint32_t target);
  // A server is gone for some worker, and so for all: whether the others can go on.
  void lose_server(std::uint32_t index);

  // Checks (simulation_checks.cpp).
  void check_result(std::size_t number, std::size_t member, Work& work);
  void check_outcomes();
  void check_alike(std::size_t number);
  void check_outcome(std::uint32_t rank, const OperationPlan& operation, const Status& status);
  void check_ends();
  void check_leftovers();
  void check_credit();
  std::string who_waits() const;
  bool concerned(const OperationPlan& operation) const;

  void note(std::initializer_list<std::uint64_t> values);
  std::size_t member_of(std::size_t number, std::uint32_t rank) const;
  Work& work_of(std::size_t number, std::uint32_t rank) { return work_[number][member_of(number, rank)]; }

  const Plan plan_;
  Outcome outcome_;
  Network network_;
  Ledger ledger_;
  Decisions decisions_;
  Told told_;
  Memory memory_;
  Cluster cluster_;
  std::vector<Life> lives_;
  std::vector<std::vector<Work>> work_;  // by operation and member
  std::vector<Expected> expected_;       // by operation
  std::vector<bool> submitted_;          // by operation · ranks + rank

  Time struck_until_ = 0;            // when the last of the faults is over
  std::set<std::uint32_t> leaving_;  // ranks whose goodbye has begun

  // What has gone wrong so far.
  bool disturbed_ = false;  // beyond a rank that holds no server
  bool forged_ = false;
  bool elements_damaged_ = false;
  std::set<std::uint32_t> lost_servers_;
  std::set<std::uint32_t> cut_off_;     // ranks that have lost a link to a server, and maybe their goodbye with it
  std::set<std::uint32_t> gone_ranks_;  // dead or aborted
  std::set<Code> excuses_;              // what an operation may end with for the sake of the faults
};

}  // namespace shoal::sim
