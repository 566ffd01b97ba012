// Ranks that join: see simulation.h. As the engine and its users do it: a rank waits for its own calls, then for the
// others to join, and calls meanwhile what it hears of.
#include <algorithm>
#include <iterator>

#include "drivers/sim/joins.h"
#include "drivers/sim/simulation.h"
#include "protocol/joining.h"
#include "protocol/keys.h"

namespace shoal::sim {

namespace {

// The handles of calls that this rank has made already.
constexpr std::uint64_t made_before = std::uint64_t{1} << 40U;

// Larger arrays are not to be had. Those of plans are far smaller.
constexpr std::uint64_t most_memory = std::uint64_t{64} << 20U;

// How long one that has joined waits for calls that others have made, once all have joined. All of them have ended by
// then.
constexpr Time longest_behind = 120 * second;

}  // namespace

void Simulation::begin_join(std::uint32_t rank, std::size_t number) {
  network_.trace("worker " + std::to_string(rank) + "  joins: " + std::to_string(number));
  lives_[rank].joins.emplace(number, Life::Wait::for_own_calls);
  cluster_.join(rank, lives_[rank].groups[plan_.operations[number].group], false);
  go_on_joining(rank);
}

// What its program has called there has ended, and then the join itself.
void Simulation::go_on_joining(std::uint32_t rank) {
  Life& life = lives_[rank];
  if (cluster_.worker(rank).worker == nullptr || life.aborted) {
    return;
  }
  for (auto at = life.joins.begin(); at != life.joins.end();) {
    const auto [number, waits] = *at;
    const std::uint32_t group = plan_.operations[number].group;
    if (waits == Life::Wait::for_own_calls && !has_open_calls(rank, group)) {
      at->second = Life::Wait::for_others;
      life.most_calls[number] = calls_ended(rank, group);
      submit(rank, number);
      return go_on_joining(rank);  // it may have ended at once
    }
    if (waits == Life::Wait::for_others && have_all_joined(rank, number)) {
      at->second = Life::Wait::for_nobody_to_be_joined;
      cluster_.join(rank, life.groups[group], true);
      submit(rank, number + 1);
      return go_on_joining(rank);
    }
    const std::optional<Status>& last = work_of(number + 1, rank).status;
    const bool over = waits == Life::Wait::for_nobody_to_be_joined && last;
    if (over && (!last->ok() || !work_of(number, rank).status->ok())) {
      life.failed_joins.insert(group);
    }
    if (over) {
      network_.trace("worker " + std::to_string(rank) + "  has joined, and goes on: " + std::to_string(number));
    }
    at = over ? life.joins.erase(at) : std::next(at);
  }
  go_on(rank);
}

// And whether the rank has made all of their calls.
bool Simulation::have_all_joined(std::uint32_t rank, std::size_t number) {
  Life& life = lives_[rank];
  const Work& work = work_of(number, rank);
  if (!work.status) {
    return false;
  }
  const bool is_behind = work.status->ok() && calls_ended(rank, plan_.operations[number].group) < most_calls(number);
  if (is_behind && life.waits_until == 0) {
    life.waits_until = network_.now() + longest_behind;
    network_.scheduler().at(life.waits_until, cluster_.worker(rank).actor, [this, rank] { go_on_joining(rank); });
  }
  const bool gives_up = is_behind && network_.now() >= life.waits_until;
  if (gives_up && !forged_ && !concerned(plan_.operations[number])) {
    violated("rank " + std::to_string(rank) + " is not told of all that others have called");
  }
  return !is_behind || gives_up;
}

bool Simulation::has_open_calls(std::uint32_t rank, std::uint32_t group) {
  for (std::size_t number = 0; number < plan_.operations.size(); ++number) {
    const bool is_own = plan_.operations[number].group == group && submitted_[number * plan_.config.size() + rank] &&
                        !plan_.operations[number].members[member_of(number, rank)].joined;
    if (is_own && !work_of(number, rank).status) {
      return true;
    }
  }
  return false;
}

std::size_t Simulation::calls_ended(std::uint32_t rank, std::uint32_t group) {
  std::size_t ended = 0;
  for (std::size_t number = 0; number < plan_.operations.size(); ++number) {
    const OperationPlan& operation = plan_.operations[number];
    const bool counts =
        operation.group == group && !is_of_join(operation.name) && submitted_[number * plan_.config.size() + rank];
    ended += counts && work_of(number, rank).status ? 1 : 0;
  }
  return ended;
}

// The largest that a member had when it began to wait, which the operation tells all of them.
std::size_t Simulation::most_calls(std::size_t join) const {
  std::size_t most = 0;
  for (const std::uint32_t rank : plan_.members(plan_.operations[join])) {
    const auto found = lives_[rank].most_calls.find(join);
    most = std::max(most, found == lives_[rank].most_calls.end() ? 0 : found->second);
  }
  return most;
}

void Simulation::on_called(std::uint32_t rank, std::uint32_t group, const wire::Opening& opening) {
  network_.scheduler().at(network_.now() + (network_.random().chance(0.5) ? 0 : network_.delay()),
                          cluster_.worker(rank).actor,
                          [this, rank, group, opening] { call_for_others(rank, group, opening); });
}

void Simulation::call_for_others(std::uint32_t rank, std::uint32_t group, const wire::Opening& opening) {
  Life& life = lives_[rank];
  const auto known = std::find(life.groups.begin(), life.groups.end(), group);
  const auto place = static_cast<std::uint32_t>(known - life.groups.begin());
  const std::optional<std::size_t> join = join_of(plan_, place);
  if (cluster_.worker(rank).worker == nullptr || life.aborted || !join) {
    return;
  }
  const auto joined = life.joins.find(*join);
  if (joined == life.joins.end() || joined->second == Life::Wait::for_nobody_to_be_joined) {
    return;
  }
  const std::string name = opening.name == unnamed ? "" : opening.name;
  std::uint32_t before = opening.occurrence;
  std::size_t number = 0;
  for (; number < plan_.operations.size(); ++number) {
    const OperationPlan& operation = plan_.operations[number];
    if (operation.group == place && operation.name == name && before-- == 0) {
      break;
    }
  }
  if (number == plan_.operations.size()) {
    return forged_ ? void() : violated("rank " + std::to_string(rank) + " is told of a call that nobody has made");
  }
  const OperationPlan& operation = plan_.operations[number];
  const std::size_t index = member_of(number, rank);
  std::uint64_t bytes = 0;
  Submission call = call_of_joined(opening, group, operation.timeout, bytes);
  if (bytes > most_memory) {  // of a call that was forged
    fail_call_of_joined(call, "there is no memory for " + std::to_string(bytes) + " bytes");
    bytes = 0;
  }
  const bool again = submitted_[number * plan_.config.size() + rank];
  network_.trace("worker " + std::to_string(rank) + "  calls " + std::to_string(number) + " for others" +
                 (again ? ", again" : ""));
  if (!again && !operation.members[index].joined) {
    // Whose join has failed goes on before the others.
    if (!forged_ && !concerned(operation)) {
      violated("rank " + std::to_string(rank) + " is told of a call that it has yet to make itself");
    }
    return;
  }
  Array& zeros = make_array(operation, index, bytes);
  std::fill_n(zeros.data(), bytes, std::byte{0});
  call.input = call.output = bytes == 0 ? nullptr : zeros.data();
  call.input_bytes = call.output_bytes = bytes;
  call.handle = again ? made_before + number : number + 1;
  if (!again) {
    Work& work = work_[number][index];
    work.input = work.output = &zeros;
    work.result = zeros.data();
    work.result_bytes = bytes;
    submitted_[number * plan_.config.size() + rank] = true;
    ++life.open;
  }
  cluster_.submit(rank, std::move(call));
}

// Whether it is the end of a call that the rank had made before; nobody else may hear of that.
bool Simulation::note_made_before(std::uint32_t rank, std::uint64_t handle, const Status& status) {
  if (handle < made_before) {
    return false;
  }
  if (status.ok() && !forged_) {
    violated("rank " + std::to_string(rank) + " has made a call twice: " + std::to_string(handle - made_before));
  }
  return true;
}

void Simulation::check_joins() {
  for (std::size_t number = 0; number < plan_.operations.size(); ++number) {
    const OperationPlan& operation = plan_.operations[number];
    for (std::size_t index = 0; index < operation.members.size(); ++index) {
      const bool untold = operation.members[index].joined && !work_[number][index].status;
      if (untold && operation.outcomes.empty() && excuses_.empty() && !concerned(operation) && !forged_) {
        violated("member " + std::to_string(index) + " has joined, and was not told of operation " +
                 std::to_string(number) + " ('" + operation.name + "')");
      }
    }
  }
}

}  // namespace shoal::sim
