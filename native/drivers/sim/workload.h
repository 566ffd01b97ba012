// What a simulated job does, drawn from a seed: its size and limits, its groups, every operation of every rank, and
// what goes wrong. A plan is only data; simulation.h carries it out and knows what must come of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "drivers/sim/network.h"
#include "drivers/sim/random.h"
#include "protocol/job.h"
#include "protocol/sharding.h"

namespace shoal::sim {

struct GroupPlan {
  std::vector<std::uint32_t> ranks;
  std::string name;
};

// What one member of the group submits.
struct MemberPlan {
  Collective collective = Collective::none;
  Operator op = Operator::none;
  DType dtype = DType::none;
  std::uint32_t root = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> splits;  // bytes
  bool in_place = false;
  bool streamed = false;      // all-reduce in place: the contribution comes piece by piece after the submission
  bool ready_output = false;  // all-gather, all-to-all: the output is given although its size need not be known
  bool no_input = false;      // broadcast: a receiver without an input, a root without an output
  bool in_arena = false;      // its arrays lie in the memory that the ranks of its machine share, if there is room
  bool late_input = false;    // called before its input is there, which comes some time later
  std::optional<std::size_t> follows;  // and once this operation has ended here, as in an accelerator's stream
  bool no_memory = false;              // an all-gather: there is no memory for what it brings
  bool absent = false;                 // never submits it
  bool joined = false;                 // has joined before: it is called with zeros once the rank hears of it
  std::string failure;                 // fails before it begins

  std::uint64_t bytes() const;
};

struct OperationPlan {
  std::uint32_t group = 0;
  std::string name;
  std::uint64_t values = 0;  // seed of the inputs
  bool rough = false;        // random floats instead of small whole numbers
  Time timeout = 0;
  std::vector<MemberPlan> members;
  // How it may end. Empty: it must end well. Otherwise, without a fault that concerns it, every member that submits it
  // hears one of these.
  std::set<Code> outcomes;
  // Whichever of these it is, unless a fault concerns it: all members hear the same.
  bool ends_alike = false;
  bool after_join = false;  // every member calls it when it has joined in the group, and goes on
};

// One rank's life: what it submits when, in this order; then it leaves.
struct RankPlan {
  struct Step {
    Time when = 0;
    std::size_t operation = 0;
    std::uint32_t credit = 0;  // rank 0: if not 0, the job's from then on
    bool competing = false;    // and whether its links compete
  };
  std::vector<std::uint32_t> groups;  // in the order in which they are made
  std::vector<Step> steps;
  std::uint32_t window = 0;  // how many may be open at once; 0: any number
  Time leave_after = 0;      // after the last submission
  bool exits_when_left = false;
};

// SHOAL_PEER_TIMEOUT: a link that is silent for so long is broken.
inline constexpr Time peer_timeout = 15 * second;

struct Fault {
  enum class Kind {
    break_link,
    break_server,   // the link of one worker to one dedicated server
    break_network,  // one of two networks at a rank (0 or 1, the duration): its links to servers, to the server in its
                    // process, and its control link
    break_standby,  // the link of one worker to a server in another's process that averages nothing yet
    kill_rank,
    kill_in_a_copy,  // a rank that shares memory, in the middle of a copy or a sum
    kill_server,
    freeze_rank,
    freeze_server,
    partition,         // links between some processes and the others are silent; they break if it takes too long
    delay_rank,        // what a rank has sent to servers, and sends now, comes so much later
    corrupt,           // the header of a frame
    corrupt_elements,  // the payload of a frame, where nothing but TCP's checksum could tell
    forge,
    second_connection,
    refuse_connect,
    abort,
  };
  Kind kind = Kind::freeze_rank;
  Time when = 0;
  std::uint32_t target = 0;  // a rank, a server, a link, a number of frames or a seed, whatever there is of it
  Time duration = 0;
  std::optional<std::uint32_t> goodbye_of = std::nullopt;  // `when` counts from the moment at which this rank leaves
};

struct Plan {
  JobConfig config;
  std::vector<std::uint32_t> server_processes;  // by index: which dedicated process holds it, if it is dedicated
  Timing timing;
  std::vector<GroupPlan> groups;  // 0: all ranks
  std::vector<OperationPlan> operations;
  std::vector<RankPlan> ranks;
  std::vector<Fault> faults;
  std::uint32_t most_credit = 0;  // of all steps
  std::uint64_t server_rate = 0;  // the job's, as servers know it; at 1 the first result admits where it may
  bool processes_end = false;  // workers exit once the job has ended, in any order; otherwise everything is inspected

  const std::vector<std::uint32_t>& members(const OperationPlan& operation) const {
    return groups[operation.group].ranks;
  }
  bool holds_server(std::uint32_t rank) const;
  // Whether lanes are spread over two networks: then there is a control link in each.
  bool has_two_networks() const;
  // Whether operations of this group are carried out by ranks that share memory, alone or with other nodes.
  bool is_local(std::uint32_t group) const;
};

// Anything at all; `faults`: things may go wrong.
Plan random_plan(std::uint64_t seed, bool faults);

// The parts that scenarios are made of.
struct Shape {
  std::uint32_t ranks = 4;
  std::uint32_t dedicated = 2;
  std::uint32_t lanes = 1;
};
// A job with the group of all ranks, small limits and nothing to do yet.
Plan empty_plan(const Shape& shape);
// So many ranks of each machine share memory, drawn for each.
void share_machines(Random& random, Plan& plan, std::uint32_t most);
// Nodes average nothing themselves (SHOAL_COLOCATED=never): a rank may die without taking a server with it.
void leave_to_dedicated(Plan& plan);
OperationPlan random_operation(Random& random, const Plan& plan, std::uint32_t group);
// Gives every rank its steps, begun within twice `spread`, each in an order of its own if `shuffled`: operations of one
// name keep theirs. Sets the limit on what is open to what that needs.
void schedule(Random& random, Plan& plan, bool shuffled, Time spread);

}  // namespace shoal::sim
