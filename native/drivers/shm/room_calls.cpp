// How this rank calls a room's operations, and says so to the others.
//
// What it has open is limited by the memory that the records of that take, and so are the names that it has used.
// Beyond that an operation fails, and the others hear of it, as of any other that fails before it begins.
#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "drivers/shm/room_impl.h"
#include "protocol/agreement.h"
#include "protocol/keys.h"
#include "protocol/progress.h"

namespace shoal::shm {

namespace {

// What a name takes beside its key: its place in a table.
constexpr std::size_t name_overhead = 64;

}  // namespace

void Room::Impl::take_submissions() {
  while (submissions_.load() > 0) {
    Submission submission;
    {
      const std::lock_guard lock(submitting_);
      submission = std::move(submitted_.front());
      submitted_.pop_front();
      submissions_.fetch_sub(1);
    }
    call(std::move(submission));
  }
}

Status Room::Impl::problem_with(const Submission& submission) const {
  const auto error = [this](Code code, std::string what) {
    return Status::error(code, std::move(what), in_job(rank_));
  };
  if (!submission.failure.empty()) {
    return error(Code::failed_on_rank, submission.failure);
  }
  if (submission.shape.size() > limits::dimensions) {
    return error(Code::failed_on_rank, "arrays have at most " + std::to_string(limits::dimensions) + " dimensions");
  }
  if (open_bytes_ >= config_.tables.open) {
    return too_much("the operations that are open", "open_bytes", config_.tables.open,
                    std::to_string(desk_.open.load()) + " are open; wait for some of them");
  }
  return {};
}

Status Room::Impl::too_much(const char* what, const char* limit, std::size_t allowed, const std::string& advice) const {
  return Status::error(Code::limit,
                       std::string(what) + " take all the memory that they may on " + name_of(rank_) + ", " +
                           bytes_text(allowed) + " (" + limit + "): " + advice,
                       in_job(rank_));
}

// As here and as encoded, with what is known of each rank's call; other ranks have the same of it.
std::size_t Room::Impl::record_bytes(const Submission& submission) const {
  constexpr std::size_t entries = 512;
  const std::size_t listed = 8 * (submission.shape.size() + submission.splits.size());
  return sizeof(Operation) + entries + ranks_ * sizeof(Call) +
         3 * (submission.name.size() + submission.failure.size() + listed);
}

// Nobody else hears of it.
void Room::Impl::end_unopened(const Submission& submission, Status why) {
  world_.finish(submission.handle, std::move(why));
  ++ended_;
}

void Room::Impl::call(Submission submission) {
  if (!broken_.ok()) {
    return end_unopened(submission, broken_);
  }
  if (const std::string problem = problem_with_name(submission.name); !problem.empty()) {
    return end_unopened(submission, Status::error(Code::failed_on_rank, problem, in_job(rank_)));
  }
  const Group* group = nullptr;
  {
    const std::shared_lock lock(naming_);
    group = groups_.at(submission.group).get();
  }
  const std::string name = submission.name.empty() ? unnamed : submission.name;
  const Hash128 first_key = operation_key(group->id, name, 0);
  if (occurrences_.size() * name_overhead >= config_.tables.names && !occurrences_.contains(first_key)) {
    return end_unopened(submission, too_much("the names of operations", "names_bytes", config_.tables.names,
                                             std::to_string(occurrences_.size()) +
                                                 " names were used; use the same names in every step"));
  }
  const std::uint32_t occurrence = occurrences_[first_key]++;
  if (failed_bytes_ >= config_.tables.open) {
    if (Status problem = problem_with(submission); !problem.ok()) {
      return end_unopened(submission, std::move(problem));
    }
  }
  Operation& operation = operation_of(operation_key(group->id, name, occurrence));
  operation.called = true;
  operation.group = group;
  operation.moved = now();
  operation.late_after = first_late;

  wire::Opening& opening = operation.opening;
  opening.name = name;
  opening.group = group->id;
  opening.occurrence = occurrence;
  opening.key = operation.key;
  Status problem = operation.verdict ? *operation.verdict : problem_with(submission);
  operation.record = record_bytes(submission);
  if (problem.ok()) {
    take_arguments(opening, submission);
    open_bytes_ += operation.record;
    opening.bytes = submission.collective == Collective::broadcast ? submission.output_bytes : submission.input_bytes;
    desk_.open.fetch_add(1);
    check_by(operation.moved + std::min(submission.timeout, first_late));
  } else {
    opening.failed = true;
    opening.text = problem.message;
    failed_bytes_ += operation.record;
    operation.state = Operation::State::over;
    world_.finish(submission.handle, std::move(problem));
    ++ended_;
  }
  operation.submission = std::move(submission);
  operation.body = wire::encode(opening);
  unwritten_.push_back(operation.key);
}

// False: there is no room now.
bool Room::Impl::write_sayings() {
  while (!unsaid_.empty()) {
    const Saying& saying = unsaid_.front();
    if (!writer_.write({saying.kind, saying.key, saying.body, saying.data})) {
      return false;
    }
    unsaid_.pop_front();
    ring_others();
  }
  return true;
}

void Room::Impl::write_calls() {
  if (!write_sayings()) {
    return;
  }
  while (!unwritten_.empty()) {
    Operation& operation = *find(unwritten_.front());
    if (!write_call(operation)) {
      return;
    }
    unwritten_.pop_front();
    judge_all(operation);
  }
}

// One that has ended here is written in any case, without its data: others wait for it, and its arrays are no longer
// ours to read.
bool Room::Impl::write_call(Operation& operation) {
  const wire::Opening& opening = operation.opening;
  const bool is_over = operation.state == Operation::State::over;
  const bool small = stays(opening.collective) && opening.bytes <= inline_bytes_;
  const bool inlined =
      !is_over && small && eager_ + opening.bytes <= std::max<std::size_t>(config_.eager, inline_bytes_);
  ConstBytes data;
  if (inlined && opening.bytes > 0 && contributes(operation)) {
    data = {operation.submission.input, static_cast<std::size_t>(opening.bytes)};
  }
  Kind kind = inlined ? Kind::open_with_data : Kind::open;
  const std::optional<Place> place =
      is_over || small || opening.collective != Collective::all_reduce ? std::nullopt : place_of(operation.submission);
  if (place.has_value()) {
    kind = Kind::open_in_arena;
    data = std::as_bytes(std::span(&*place, 1));
  }
  if (!writer_.write({kind, operation.key, operation.body, data})) {
    return false;
  }
  operation.inlined = inlined;
  if (inlined) {
    eager_ += opening.bytes;
  }
  operation.round = rounds_;
  Call& own = operation.calls[rank_];
  own.opened = own.same = true;
  own.has_data = inlined;
  own.place = place;
  ++operation.opened;
  if (!is_over) {
    world_.sending(operation.submission.handle);
  }
  if (opening.failed) {
    ring_others();
  }
  return true;
}

}  // namespace shoal::shm
