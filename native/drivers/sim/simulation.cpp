#include "drivers/sim/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "drivers/sim/expected.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"

namespace shoal::sim {

namespace {

// Far more than any run needs.
constexpr std::uint64_t most_events = 20'000'000;
constexpr std::uint64_t most_output = 1 << 20;
constexpr Time longest_run = 24 * 3600 * second;

// Where nothing is lost but servers, everybody knows so soon after the last handle's end that the others have what they
// need.
constexpr Time longest_goodbye = 10 * second;

std::uint64_t handle_of(std::size_t operation) { return operation + 1; }

}  // namespace

Simulation::Simulation(const Plan& plan, std::uint64_t seed, std::ostream* trace)
    : plan_(plan),
      network_(seed, plan_.timing, *this, trace),
      ledger_(plan_.config),
      decisions_(plan_),
      cluster_(plan_, network_, *this, *this),
      lives_(plan_.config.size()),
      submitted_(plan_.operations.size() * plan_.config.size()) {
  for (const OperationPlan& operation : plan_.operations) {
    work_.emplace_back(operation.members.size());
    expected_.emplace_back(plan_, operation);
  }
}

Outcome Simulation::run() {
  if (const std::string problem = problem_with(plan_.config); !problem.empty()) {
    violated("the plan cannot be worked with: " + problem);
  }
  for (std::uint32_t rank = 0; rank < plan_.config.size(); ++rank) {
    network_.scheduler().at(0, cluster_.worker(rank).actor, [this, rank] { start(rank); });
  }
  for (const Fault& fault : plan_.faults) {
    if (!fault.goodbye_of) {
      network_.scheduler().at(fault.when, outside, [this, &fault] { strike(fault); });
    }
  }
  Scheduler& scheduler = network_.scheduler();
  while (outcome_.violation.empty() && scheduler.step()) {
    if (scheduler.events() > most_events || scheduler.now() > longest_run) {
      violated("the run does not end" + who_waits());
    }
  }
  if (outcome_.violation.empty()) {
    check_outcomes();
    check_joins();
    check_ends();
    check_leftovers();
    check_credit();
  }
  outcome_.events = scheduler.events();
  outcome_.ended_at = scheduler.now();
  return outcome_;
}

void Simulation::start(std::uint32_t rank) {
  Life& life = lives_[rank];
  life.groups.resize(plan_.groups.size());
  Seat& seat = *cluster_.worker(rank).seat;
  seat.after = [this, rank] {
    cluster_.check_memory(cluster_.worker(rank));
    cluster_.local().fail(rank, *cluster_.worker(rank).worker);
    note_goodbye(rank);
    exit_if_done(rank);
  };
  network_.turn(seat, [&](Machine&) {
    for (std::uint32_t group : plan_.ranks[rank].groups) {
      life.groups[group] = cluster_.make_group(rank, plan_.groups[group]);
    }
  });
  go_on(rank);
}

// Submits what is due and allowed, then sees to it that it is called again.
void Simulation::go_on(std::uint32_t rank) {
  Life& life = lives_[rank];
  const RankPlan& plan = plan_.ranks[rank];
  Scheduler& scheduler = network_.scheduler();
  if (cluster_.worker(rank).worker == nullptr || life.aborted || life.leaving) {
    return;
  }
  while (life.next < plan.steps.size() && (plan.window == 0 || life.open < plan.window)) {
    const RankPlan::Step& step = plan.steps[life.next];
    if (step.when > network_.now()) {
      scheduler.at(step.when, cluster_.worker(rank).actor, [this, rank] { go_on(rank); });
      return;
    }
    const OperationPlan& operation = plan_.operations[step.operation];
    if (operation.after_join && life.joins.contains(*join_of(plan_, operation.group))) {
      return;  // until it goes on
    }
    ++life.next;
    if (operation.after_join && life.failed_joins.contains(operation.group)) {
      continue;
    }
    operation.name == join_name ? begin_join(rank, step.operation) : submit(rank, step.operation);
    change_window(rank, {step.credit, step.competing});
  }
  if (life.next == plan.steps.size() && life.joins.empty()) {
    life.leaving = true;
    scheduler.at(network_.now() + plan.leave_after, cluster_.worker(rank).actor, [this, rank] { leave(rank); });
  }
}

void Simulation::submit(std::uint32_t rank, std::size_t number) {
  const OperationPlan& operation = plan_.operations[number];
  const std::size_t index = member_of(number, rank);
  const MemberPlan& member = operation.members[index];
  Work& work = work_[number][index];
  prepare(work, operation, index, expected_[number].input(index));

  Submission submission;
  submission.handle = handle_of(number);
  submission.collective = member.collective;
  submission.group = lives_[rank].groups[operation.group];
  submission.name = operation.name;
  submission.op = member.op;
  submission.dtype = member.dtype;
  submission.root = member.root;
  submission.shape = member.shape;
  submission.splits = member.splits;
  submission.timeout = operation.timeout;
  submission.failure = member.failure;
  const bool is_root = member.root == index;
  const bool no_input = member.collective == Collective::broadcast && member.no_input && !is_root;
  // Among the ranks of a machine a root has an output, as the array API gives it one.
  const bool root_alone =
      member.collective == Collective::broadcast && is_root && !member.in_place && !plan_.is_local(operation.group);
  if (!no_input) {
    submission.input = work.input->data() + input_offset(operation, index);
    submission.input_bytes = member.bytes();
  }
  if (member.streamed && member.failure.empty()) {
    submission.streamed = true;
    std::fill(work.input->data(), work.input->data() + member.bytes(), std::byte{0xa5});
  }
  if (member.late_input) {
    submission.awaits_input = work.awaits_input = true;
    std::fill_n(work.input->data() + input_offset(operation, index), member.bytes(), std::byte{0xa5});
  }
  if (work.output != nullptr && !root_alone) {
    submission.output = work.result;
    submission.output_bytes = work.result_bytes;
  }
  network_.trace("worker " + std::to_string(rank) + "  submits " + std::to_string(number) + ": " +
                 name_of(member.collective) + " " + name_of(member.op) + " " + name_of(member.dtype) + " of " +
                 std::to_string(member.bytes()) + " bytes, '" + operation.name + "' in group " +
                 std::to_string(operation.group) + (member.failure.empty() ? "" : ", failed"));
  submitted_[number * plan_.config.size() + rank] = true;
  ++lives_[rank].open;
  const bool streamed = submission.streamed;
  const bool late = submission.awaits_input;
  cluster_.submit(rank, std::move(submission));
  if (streamed) {
    contribute_in_parts(rank, number);
  }
  if (late && member.follows && !work_of(*member.follows, rank).status) {
    lives_[rank].following.insert(number);
  } else if (late) {
    bring_input(rank, number);
  }
}

// Where in its array the member's own part of an all-gather in place lies; else at the beginning.
std::size_t Simulation::input_offset(const OperationPlan& operation, std::size_t member) {
  const MemberPlan& plan = operation.members[member];
  const bool inside = plan.in_place && plan.ready_output && plan.collective == Collective::all_gather;
  return inside ? own_offset(operation, member) : 0;
}

void Simulation::bring_input(std::uint32_t rank, std::size_t number) {
  const Time when = network_.now() + (network_.random().chance(0.3) ? 0 : network_.delay());
  network_.scheduler().at(when, cluster_.worker(rank).actor, [this, rank, number] {
    Work& work = work_of(number, rank);
    if (work.status || cluster_.worker(rank).worker == nullptr) {
      return;
    }
    const OperationPlan& operation = plan_.operations[number];
    const std::size_t index = member_of(number, rank);
    const Bytes& input = expected_[number].input(index);
    std::copy(input.begin(), input.end(), work.input->data() + input_offset(operation, index));
    work.awaits_input = false;
    network_.trace("worker " + std::to_string(rank) + "  has the input of " + std::to_string(number));
    cluster_.input_ready(rank, lives_[rank].groups[operation.group], handle_of(number));
  });
}

// In pieces that a segment may straddle, in any order. What is not there yet must not be sent, so it is wrong until
// then.
void Simulation::contribute_in_parts(std::uint32_t rank, std::size_t number) {
  Random& random = network_.random();
  const std::uint64_t bytes = work_of(number, rank).result_bytes;
  Time when = network_.now();
  for (std::uint64_t begin = 0, end = 0; begin < bytes; begin = end) {
    end = std::min(bytes, begin + 64 * random.between(1, 12));
    when += random.chance(0.5) ? network_.delay() : 0;
    const Time moment = random.chance(0.2) ? network_.now() : when;
    network_.scheduler().at(moment, cluster_.worker(rank).actor, [this, rank, number, piece = Range{begin, end}] {
      Work& work = work_of(number, rank);
      if (work.status || cluster_.worker(rank).worker == nullptr) {
        return;
      }
      const Bytes& input = expected_[number].input(member_of(number, rank));
      std::copy(input.begin() + static_cast<std::ptrdiff_t>(piece.begin),
                input.begin() + static_cast<std::ptrdiff_t>(piece.end), work.result + piece.begin);
      network_.turn(*cluster_.worker(rank).seat,
                    [&](Machine&) { cluster_.worker(rank).worker->contributed(handle_of(number), piece); });
    });
  }
}

void Simulation::on_received(std::uint32_t rank, std::uint64_t handle, Range range) {
  Work& work = work_of(handle - 1, rank);
  work.told.add(range);
  work.received.resize(work.result_bytes);
  std::copy(work.result + range.begin, work.result + range.end,
            work.received.begin() + static_cast<std::ptrdiff_t>(range.begin));
}

void Simulation::change_window(std::uint32_t rank, const CongestionController::Setting& window) {
  Worker* worker = cluster_.worker(rank).worker.get();
  if (window.credit == 0 || worker == nullptr || worker->open_operations() == 0) {
    return;
  }
  network_.trace("worker " + std::to_string(rank) + "  makes the credit " + std::to_string(window.credit) +
                 (window.competing ? ", insisting" : ""));
  network_.turn(*cluster_.worker(rank).seat, [&](Machine&) { worker->set_window(window); });
}

// Makes the arrays of one member and fills in its input.
void Simulation::prepare(Work& work, const OperationPlan& operation, std::size_t index, const Bytes& input) {
  const MemberPlan& member = operation.members[index];
  const bool gathers = member.collective == Collective::all_gather || member.collective == Collective::all_to_all;
  work.result_bytes = output_bytes_of(operation, index);
  const bool in_place = member.in_place && (!gathers || member.ready_output);
  const std::size_t offset = in_place ? own_offset(operation, index) : 0;
  if (in_place && gathers) {
    work.input = &make_array(operation, index, work.result_bytes);
    std::copy(input.begin(), input.end(), work.input->data() + offset);
  } else {
    work.input = &make_array(operation, index, input.size());
    std::copy(input.begin(), input.end(), work.input->data());
  }
  if (in_place) {
    work.output = work.input;
    work.result = work.output->data() + (gathers ? 0 : offset);
  } else if (!gathers || member.ready_output) {
    work.output = &make_array(operation, index, work.result_bytes);
    work.result = work.output->data();
  }
}

Array& Simulation::make_array(const OperationPlan& operation, std::size_t index, std::size_t bytes) {
  std::byte* storage = nullptr;
  if (operation.members[index].in_arena) {
    storage = cluster_.local().allocate(plan_.members(operation)[index], Array::storage_bytes(bytes));
  }
  return memory_.make(bytes, storage);
}

void Simulation::leave(std::uint32_t rank) {
  if (cluster_.worker(rank).worker != nullptr && !lives_[rank].aborted) {
    network_.trace("worker " + std::to_string(rank) + "  leaves");
    lives_[rank].leave_at = network_.now();
    cluster_.leave(rank);
  }
}

void Simulation::note_goodbye(std::uint32_t rank) {
  Life& life = lives_[rank];
  if (life.left || !life.leaving || !cluster_.worker(rank).worker->left()) {
    return;
  }
  life.left = true;
  if (disturbed_ || forged_ || !gone_ranks_.empty() || !cut_off_.empty()) {
    return;
  }
  Time since = std::max(life.leave_at, struck_until_);
  if (!outcome_.finishes.empty()) {
    since = std::max(since, outcome_.finishes.back().when);
  }
  if (network_.now() > since + longest_goodbye) {
    violated("rank " + std::to_string(rank) + " waited for something before it said goodbye");
  }
}

void Simulation::goodbye_begins(std::uint32_t rank) {
  if (!leaving_.insert(rank).second) {
    return;
  }
  for (const Fault& fault : plan_.faults) {
    if (fault.goodbye_of == rank) {
      network_.scheduler().at(network_.now() + fault.when, outside, [this, &fault] { strike(fault); });
    }
  }
}

// A process that nobody needs any more may end.
void Simulation::exit_if_done(std::uint32_t rank) {
  Life& life = lives_[rank];
  Cluster::WorkerHost& host = cluster_.worker(rank);
  const bool needed = rank == 0 || host.worker->serves();
  // After an abort a call may still wait for its input, which the device writes until then.
  const bool all_done = life.leaving && host.worker->left() && life.open == 0;
  const bool may_exit = (life.aborted && life.open == 0) || (life.ended && plan_.processes_end && all_done) ||
                        (all_done && !needed && plan_.ranks[rank].exits_when_left);
  if (!may_exit || life.exiting) {
    return;
  }
  life.exiting = true;
  network_.scheduler().at(network_.now() + network_.delay(), outside, [this, rank] { exit(rank); });
}

// Not before the other sides have its goodbye, unless it ends with an error.
void Simulation::exit(std::uint32_t rank) {
  const ActorId actor = cluster_.worker(rank).actor;
  const Time when = network_.acknowledged_at(actor);
  if (when > network_.now() && !lives_[rank].aborted) {
    network_.scheduler().at(when, outside, [this, rank] { exit(rank); });
    return;
  }
  network_.trace("worker " + std::to_string(rank) + "  exits");
  cluster_.end_process(actor, true);
}

void Simulation::on_finish(std::uint32_t rank, std::uint64_t handle, Status status) {
  if (note_made_before(rank, handle, status)) {
    return;
  }
  const std::size_t number = handle - 1;
  if (number >= plan_.operations.size() || !submitted_[number * plan_.config.size() + rank]) {
    violated("worker " + std::to_string(rank) + " finishes a handle that it was not given: " + std::to_string(handle));
    return;
  }
  Work& work = work_of(number, rank);
  if (work.status) {
    violated("worker " + std::to_string(rank) + " finishes operation " + std::to_string(number) + " twice");
    return;
  }
  network_.trace("worker " + std::to_string(rank) + "  finishes " + std::to_string(number) +
                 (status.ok() ? ": ok" : ": " + status.message));
  note({rank, number, static_cast<std::uint64_t>(status.code)});
  outcome_.finishes.push_back({rank, number, network_.now(), status});
  work.status = std::move(status);
  check_result(number, member_of(number, rank), work);
  const bool reached = work.input->reached() || (work.output != nullptr && work.output->reached());
  outcome_.straight += reached && work.status->ok() ? 1 : 0;
  work.input->give_back();
  if (work.output != nullptr) {
    work.output->give_back();
  }
  --lives_[rank].open;
  std::erase_if(lives_[rank].following, [&](std::size_t following) {
    const bool follows = plan_.operations[following].members[member_of(following, rank)].follows == number;
    if (follows) {
      bring_input(rank, following);
    }
    return follows;
  });
  network_.scheduler().at(network_.now() + network_.delay(), cluster_.worker(rank).actor,
                          [this, rank] { lives_[rank].joins.empty() ? go_on(rank) : go_on_joining(rank); });
}

std::byte* Simulation::on_allocate(std::uint32_t rank, std::uint64_t handle,
                                   const std::vector<std::uint64_t>& block_bytes) {
  const std::size_t number = handle - 1;
  Work& work = work_of(number, rank);
  if (forged_ && work.output != nullptr) {
    return nullptr;  // its size does not fit any more
  }
  if (work.output != nullptr || work.status) {
    violated("worker " + std::to_string(rank) + " asks for the output of operation " + std::to_string(number) +
             " although it has one");
  }
  const std::size_t index = member_of(number, rank);
  if (!forged_ && block_bytes != blocks_for(plan_.operations[number], index)) {
    violated("worker " + std::to_string(rank) + " expects wrong blocks in operation " + std::to_string(number));
  }
  if (plan_.operations[number].members[index].no_memory) {
    return nullptr;
  }
  const auto bytes = std::accumulate(block_bytes.begin(), block_bytes.end(), std::uint64_t{0});
  if (bytes > most_output) {
    return nullptr;  // only a forged size is so large
  }
  work.result_bytes = bytes;
  work.output = &memory_.make(work.result_bytes, nullptr);
  work.result = work.output->data();
  return work.result;
}

void Simulation::on_warning(std::uint32_t rank, const std::string& text) {
  network_.trace("worker " + std::to_string(rank) + "  warns: " + text);
  outcome_.warnings.push_back(text);
}

void Simulation::on_ended(std::uint32_t rank) {
  network_.trace("worker " + std::to_string(rank) + "  is told that the job has ended");
  if (std::exchange(lives_[rank].ended, true)) {
    violated("worker " + std::to_string(rank) + " is told twice that the job has ended");
  }
}

std::size_t Simulation::member_of(std::size_t number, std::uint32_t rank) const {
  const auto& members = plan_.members(plan_.operations[number]);
  return static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

// FNV-1a, by words.
void Simulation::note(std::initializer_list<std::uint64_t> values) {
  const auto add = [this](std::uint64_t value) { outcome_.digest = (outcome_.digest ^ value) * 0x100000001b3ULL; };
  add(static_cast<std::uint64_t>(network_.now()));
  std::for_each(values.begin(), values.end(), add);
}

void Simulation::on_send(const End& from, const wire::Header& header, const Bytes& owned,
                         std::span<const std::byte> /*borrowed*/) {
  note({from.id, static_cast<std::uint64_t>(header.type), header.operation, header.offset, header.length, header.credit,
        header.acknowledged});
  if (header.type == wire::Type::leave && from.is_client) {
    goodbye_begins(from.client);
  }
  std::string wrong = forged_ ? "" : ledger_.sent(from, header, owned);
  if (!forged_ && wrong.empty()) {
    wrong = decisions_.sent(from, header, owned);
  }
  if (!forged_ && wrong.empty()) {
    const bool forgets = disturbed_ || !excuses_.empty() || !cut_off_.empty() || !lost_servers_.empty();
    wrong = told_.sent(from, header, owned, forgets);
  }
  if (!wrong.empty()) {
    violated(sim::describe(from) + ": " + wrong + " (" + sim::describe(header) + ")");
  }
}

void Simulation::on_arrival(const End& to, const wire::Header& header) {
  note({to.id});
  const std::string wrong = forged_ ? "" : ledger_.arrived(to, header);
  if (!wrong.empty()) {
    violated(sim::describe(*to.other) + ": " + wrong + " (" + sim::describe(header) + ")");
  }
}

void Simulation::on_received(const End& to, const wire::Header& header) {
  if (!forged_) {
    ledger_.received(to, header);
    decisions_.received(to, header);
  }
}

void Simulation::on_lost(const End& at) {
  const std::string wrong = forged_ ? "" : decisions_.lost(at);
  if (!wrong.empty()) {
    violated(wrong + " (rank " + std::to_string(at.client) + ")");
  }
}

void Simulation::on_read(const End& from, std::span<const std::byte> borrowed) {
  const Array* array = memory_.find(borrowed.data());
  if (array != nullptr && array->given_back()) {
    violated(sim::describe(from) + ": an array is sent although its handle is done");
  }
}

void Simulation::on_write(const End& to, std::span<const std::byte> memory) {
  const Array* array = memory_.find(memory.data());
  if (array != nullptr && array->given_back()) {
    violated(sim::describe(*to.other) + ": a payload is written to an array whose handle is done");
  }
}

void Simulation::on_local_access(std::uint32_t rank, std::span<const std::byte> memory) {
  const Array* array = memory_.find(memory.data());
  if (array != nullptr && array->given_back()) {
    violated("rank " + std::to_string(rank) +
             " reads or writes an array, for the ranks of its machine, whose handle is done");
  }
}

// What another rank may see of an array that was withdrawn is nothing that counts: a wrong sum shows in its result.
void Simulation::on_reached(std::uint32_t rank, std::span<const std::byte> memory, bool counts) {
  Array* array = memory_.find(memory.data());
  if (array == nullptr) {
    return;
  }
  array->note_reached();
  if (counts && array->given_back()) {
    violated("rank " + std::to_string(rank) +
             " reads or writes another rank's array, in the memory that they share, whose handle is done");
  }
}

void Simulation::on_death(std::uint32_t rank) { kill_rank(rank); }

void Simulation::on_refused(const End& at, const Status& why) {
  if (!disturbed_) {
    violated(sim::describe(*at.other) + ": refused although nobody did wrong: " + why.message);
  }
}

void Simulation::violated(const std::string& what) {
  if (outcome_.violation.empty()) {
    outcome_.violation = what;
    network_.trace("VIOLATED: " + what);
  }
}

}  // namespace shoal::sim
