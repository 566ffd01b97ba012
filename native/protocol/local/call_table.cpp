#include "protocol/local/call_table.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/invariant.h"
#include "protocol/agreement.h"
#include "protocol/keys.h"

namespace shoal::local {

namespace {

constexpr std::size_t most_inline = 16 * 1024;

}  // namespace

CallTable::CallTable(const GroupMemory& memory, const Members& members, std::uint32_t own, bool has_other_nodes,
                     Outbox& outbox, World& world)
    : memory_(memory),
      members_(members),
      own_(own),
      has_other_nodes_(has_other_nodes),
      inline_bytes_(std::min<std::size_t>(members.config().small, most_inline)),
      outbox_(outbox),
      world_(world),
      registry_(members.config(), members.rank_of(own)),
      left_(members.size()) {}

void CallTable::add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                          const std::optional<Internode>& internode) {
  auto group = std::make_unique<Group>(Group{number, id, {}, {}, internode});
  for (std::uint32_t index = 0; index < ranks.size(); ++index) {
    if (const std::optional<std::uint32_t> place = members_.place_of(ranks[index])) {
      group->here.push_back(*place);
      group->indices.push_back(index);
    }
  }
  groups_[number] = std::move(group);
}

const Group* CallTable::group_of(const Hash128& id) const {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) { return group.second->id == id; });
  return found == groups_.end() ? nullptr : found->second.get();
}

// --- This rank's calls ---

// Nobody else hears of it.
void CallTable::finish_at_once(const Submission& submission, Status why) {
  world_.finish(submission.handle, std::move(why));
}

bool CallTable::hold(Submission& submission, Time now) {
  const Group& group = *groups_.at(submission.group);
  if (!registry_.problem_with_name(group.id, submission.name).ok() ||
      !registry_.problem_with(submission, registry_.open()).ok()) {
    return false;
  }
  registry_.number_call(submission, group.id);
  const std::size_t record = record_bytes(submission, members_.size());
  registry_.add(record);
  gates_.hold(std::move(submission), record, now);
  return true;
}

std::optional<Submission> CallTable::release(std::uint64_t handle, const std::string& problem) {
  std::optional<Gates::Held> held = gates_.release(handle, problem);
  if (!held) {
    return std::nullopt;
  }
  registry_.remove(held->record);
  return std::move(held->submission);
}

void CallTable::call(Submission&& submission, Time now, bool was_held) {
  const Group& group = *groups_.at(submission.group);
  if (Status problem = registry_.problem_with_name(group.id, submission.name); !problem.ok()) {
    return finish_at_once(submission, std::move(problem));
  }
  if (submission.told && !registry_.note_told(submission, group.id)) {
    return finish_at_once(submission, was_called_before());
  }
  wire::Opening opening;
  registry_.name_call(opening, group.id, submission);
  world_.numbered(submission.handle, opening.occurrence);
  Status problem = registry_.problem_with(submission, registry_.open(), was_held);
  if (!problem.ok() && !registry_.has_room_for_failed()) {
    return finish_at_once(submission, std::move(problem));
  }
  Operation& operation = at(opening.key);
  operation.called = true;
  operation.group = &group;
  operation.lateness.note_moved(now);
  const bool is_for_all = operation.internode_state.verdict() || submission.failure_code != Code::ok;
  if (operation.internode_state.verdict()) {
    problem = *operation.internode_state.verdict();
  }
  operation.record = record_bytes(submission, members_.size());
  if (problem.ok()) {
    take_arguments(opening, submission);
    const bool from_root = traits_of(submission.collective).root_gives_alone();
    opening.bytes = from_root ? submission.output_bytes : submission.input_bytes;
    registry_.add(operation.record);
  } else {
    opening.failed = true;
    opening.text = problem.message;
    if (is_for_all) {
      opening.code = problem.code;
      opening.rank = problem.rank;
    }
    registry_.add_failed(operation.record);
    operation.state = Operation::State::over;
    world_.finish(submission.handle, std::move(problem));
  }
  operation.opening = std::move(opening);
  operation.submission = std::move(submission);
  operation.body = wire::encode(operation.opening);
  unwritten_.push_back(operation.key);
}

// One that has ended here is written in any case, without its data: others wait for it, and its arrays are no longer
// ours to read.
Operation* CallTable::write_next(std::uint64_t round) {
  if (unwritten_.empty()) {
    return nullptr;
  }
  Operation& operation = *find(unwritten_.front());
  const wire::Opening& opening = operation.opening;
  const bool small = stays(opening.collective) && opening.bytes <= inline_bytes_;
  const std::size_t most_eager = std::max<std::size_t>(members_.config().eager, inline_bytes_);
  const bool inlined = operation.is_open() && small && eager_ + opening.bytes <= most_eager;
  RecordKind kind = inlined ? RecordKind::open_with_data : RecordKind::open;
  ConstBytes data;
  if (inlined && opening.bytes > 0 && operation.contributes(own_)) {
    data = {operation.submission.input, static_cast<std::size_t>(opening.bytes)};
  }
  std::optional<Offsets> offsets;
  if (operation.is_open() && !small && traits_of(opening.collective).shares_results()) {
    offsets = offsets_of(operation.submission);
  }
  if (offsets) {
    kind = RecordKind::open_in_region;
    data = std::as_bytes(std::span(&*offsets, 1));
  }
  if (!outbox_.write({kind, operation.key, operation.body, data})) {
    return nullptr;
  }
  unwritten_.pop_front();
  operation.inlined = inlined;
  eager_ += inlined ? opening.bytes : 0;
  operation.written_in = round;
  operation.calls.note_own(own_, inlined, offsets);
  if (operation.is_open()) {
    world_.sending(operation.submission.handle);
  }
  return &operation;
}

// Only the very same array, or two that are apart: what is written in one block must not be read in the next.
std::optional<Offsets> CallTable::offsets_of(const Submission& submission) const {
  const std::byte* const input = submission.input;
  const std::byte* const output = submission.output;
  const std::uint64_t bytes = submission.input_bytes;
  const bool apart = input + bytes <= output || output + bytes <= input;
  if ((input != output && !apart) || !world_.holds(input, bytes) || !world_.holds(output, bytes)) {
    return std::nullopt;
  }
  const std::byte* const region = memory_.region(own_);
  return Offsets{static_cast<std::uint64_t>(input - region), static_cast<std::uint64_t>(output - region)};
}

void CallTable::close(Operation& operation) {
  operation.state = Operation::State::over;
  eager_ -= operation.inlined ? operation.opening.bytes : 0;
  operation.inlined = false;
  registry_.remove(operation.record);
}

void CallTable::end(Operation& operation, const Status& status) {
  close(operation);
  operation.release_arrays();
  world_.finish(operation.submission.handle, status);
}

// --- All calls ---

Operation& CallTable::hear(std::uint32_t place, const Record& record, Time now) {
  Operation& operation = at(record.key);
  operation.lateness.note_moved(now);
  operation.calls.hear(place, record, operation.body);
  return operation;
}

std::optional<Status> CallTable::objection(Operation& operation, std::uint32_t place) const {
  std::uint64_t bytes = operation.opening.bytes;
  if (!operation.calls.is_same(place, operation.body)) {
    const wire::Opening theirs = operation.calls.opening_of(place, operation.opening);
    if (theirs.failed) {
      return failed_before(theirs, members_.rank_of(place), members_.config());
    }
    std::string what;
    if (!agree(operation.opening, theirs, what)) {
      return mismatch(operation);
    }
    bytes = theirs.bytes;
  }
  if (operation.calls.has_data(place) &&
      (!stays(operation.opening.collective) ||
       operation.calls.data_of(place).size() != (operation.contributes(place) ? bytes : 0))) {
    throw std::runtime_error("the node's shared memory is damaged: a contribution of another size than its call says");
  }
  return std::nullopt;
}

// In the order of the group, as servers say it.
Status CallTable::mismatch(const Operation& operation) const {
  std::vector<wire::Opening> openings(members_.size());
  std::vector<const wire::Opening*> known(members_.size());
  std::vector<std::uint32_t> ranks;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::uint32_t place = operation.group->here[i];
    ranks.push_back(members_.rank_of(place));
    if (operation.calls.opened(place)) {
      openings[i] = operation.calls.opening_of(place, operation.opening);
      known[i] = &openings[i];
    }
  }
  return Status::error(Code::mismatch, mismatch_text(known, ranks, false, members_.config()));
}

Operation& CallTable::at(const Hash128& key) {
  std::unique_ptr<Operation>& entry = operations_[key];
  if (entry == nullptr) {
    entry = std::make_unique<Operation>(key, members_.size());
  }
  return *entry;
}

Operation* CallTable::find(const Hash128& key) const {
  const auto found = operations_.find(key);
  return found == operations_.end() ? nullptr : found->second.get();
}

void CallTable::erase(const Hash128& key) {
  const auto found = operations_.find(key);
  if (const Operation& operation = *found->second; operation.called && operation.opening.failed) {
    registry_.remove_failed(operation.record);
  }
  operations_.erase(found);
}

void CallTable::forget_if_done(const Operation& operation) {
  // Of what has failed here the leader has yet to say so.
  const bool unsaid = !decides() && operation.opening.failed && !operation.internode_state.verdict() && !left_[0];
  bool all = operation.state == Operation::State::over && !unsaid;
  for (std::uint32_t place = 0; place < members_.size() && all; ++place) {
    all = operation.calls.opened(place) || left_[place];
  }
  if (all) {
    erase(operation.key);
  }
}

std::vector<const Operation*> CallTable::uncalled(const Hash128& group) const {
  std::vector<const Operation*> found;
  for (const auto& [key, operation] : operations_) {
    if (!operation->called && operation->calls.count() > 0 && operation->any_opening()->group == group) {
      found.push_back(operation.get());
    }
  }
  return found;
}

void CallTable::move_join(const Hash128& group, Time now) {
  for (const auto& [key, operation] : operations_) {
    if (operation->is_open() && operation->group->id == group && operation->opening.name == join_name) {
      operation->lateness.note_moved(now);
    }
  }
}

std::vector<Operation*> CallTable::lacking(std::uint32_t place) const {
  std::vector<Operation*> found;
  for (const auto& [key, operation] : operations_) {
    if (operation->calls.opened(own_) && !operation->calls.opened(place)) {
      found.push_back(operation.get());
    }
  }
  return found;
}

bool CallTable::nobody_else_calls(const Operation& operation) const {
  const std::vector<std::uint32_t> missing = operation.calls.missing();
  return std::all_of(missing.begin(), missing.end(), [this](std::uint32_t place) { return left_[place]; });
}

void CallTable::detach_arrays() {
  for (const auto& [key, operation] : operations_) {
    if (!operation->is_open() || !operation->calls.offsets_of(own_)) {
      continue;
    }
    try {
      world_.detach(operation->submission.output, operation->opening.bytes);
    } catch (const std::exception& error) {
      world_.warn("'" + operation->opening.name + "': " + error.what() +
                  "; other ranks may still write into its output");
    }
  }
}

std::map<std::uint64_t, wire::Wait> CallTable::described(const std::vector<std::uint64_t>& handles) const {
  std::map<std::uint64_t, wire::Wait> waits;
  for (const auto& [key, operation] : operations_) {
    const std::uint64_t handle = operation->submission.handle;
    if (operation->is_open() && std::binary_search(handles.begin(), handles.end(), handle)) {
      const wire::Opening& opening = operation->opening;
      waits.emplace(handle, wire::Wait{{opening.group, opening.occurrence, opening.name}, opening.collective, {}});
    }
  }
  return waits;
}

void CallTable::check_invariants() const {
  registry_.check_invariants();
  gates_.check_invariants();
  std::size_t open = gates_.count();
  std::size_t eager = 0;
  for (const auto& [key, operation] : operations_) {
    operation->check_invariants();
    open += operation->is_open() ? 1 : 0;
    eager += operation->inlined ? operation->opening.bytes : 0;
  }
  SHOAL_INVARIANT(open == registry_.open());
  SHOAL_INVARIANT(eager == eager_);
}

}  // namespace shoal::local
