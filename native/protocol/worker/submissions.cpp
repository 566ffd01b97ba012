#include "protocol/worker/submissions.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "base/invariant.h"
#include "protocol/agreement.h"
#include "protocol/collectives.h"

namespace shoal::worker {

Submissions::Submissions(const Environment& environment, const Groups& groups, const LostRanks& lost_ranks,
                         const Goodbye& goodbye, OperationTable& operations)
    : environment_(environment),
      groups_(groups),
      lost_ranks_(lost_ranks),
      goodbye_(goodbye),
      operations_(operations),
      calls_(environment.config(), environment.rank()) {}

Status Submissions::problem_with(const Submission& submission, bool was_held) const {
  if (goodbye_.is_leaving() && !was_held && !lost_ranks_.job_has_ended()) {
    return Status::error(Code::cancelled, "this rank has left the job (shoal.shutdown() was called)");
  }
  const Group* group = groups_.find(submission.group);
  if (Status loss = lost_ranks_.of(group); !loss.ok()) {
    return loss;
  }
  if (group == nullptr) {
    return Status::error(Code::failed_on_rank, "there is no group " + std::to_string(submission.group));
  }
  if (group->too_many) {
    return limit_reached("the groups", "groups_bytes", environment_.config().tables.groups,
                         "make groups once and keep them", environment_.rank(), environment_.config());
  }
  return calls_.problem_with_name(group->id, submission.name);
}

bool Submissions::hold(Submission& submission) {
  if (!problem_with(submission, false).ok() || !calls_.problem_with(submission, operations_.open_count()).ok()) {
    return false;
  }
  const Group& group = groups_.at(submission.group);
  if (group.size() == 1) {
    submission.occurrence = 0;  // which nobody counts
  } else {
    calls_.number_call(submission, group.id);
  }
  const std::size_t record = record_bytes(submission, 0);  // what servers it will have is not known yet
  calls_.add(record);
  gates_.hold(std::move(submission), record, environment_.now());
  return true;
}

std::optional<Submission> Submissions::release(std::uint64_t handle, const std::string& problem) {
  std::optional<Gates::Held> held = gates_.release(handle, problem);
  if (!held) {
    return std::nullopt;
  }
  calls_.remove(held->record);
  return std::move(held->submission);
}

std::unique_ptr<Operation> Submissions::take(Submission submission, bool was_held) {
  WorkerWorld& world = environment_.world();
  if (Status problem = problem_with(submission, was_held); !problem.ok()) {
    world.finish(submission.handle, std::move(problem));
    return nullptr;
  }
  const Group& group = groups_.at(submission.group);
  if (group.size() == 1) {
    if (submission.offset) {
      world.numbered(submission.handle, 0);  // the other channels have the rest
    }
    finish_alone(submission);
    return nullptr;
  }
  if (submission.told && !calls_.note_told(submission, group.id)) {
    world.finish(submission.handle, was_called_before());
    return nullptr;
  }
  auto operation =
      std::make_unique<Operation>(operations_.take_number(), group, std::move(submission), environment_.now());
  const Submission& s = operation->submission();
  wire::Opening& opening = operation->opening();
  calls_.name_call(opening, group.id, group.keys, s);
  world.numbered(s.handle, opening.occurrence);
  Status failure = calls_.problem_with(s, operations_.open_count(), was_held);
  if (failure.ok()) {
    take_arguments(opening, s);
  } else {
    operation->fail_before_it_began();
    opening.failed = true;
    opening.code = s.failure_code;
    opening.rank = s.failure_rank;
    opening.text = failure.message;
    world.finish(s.handle, std::move(failure));
    if (!calls_.has_room_for_failed()) {
      return nullptr;
    }
  }
  operation->measure(environment_.config());
  return operation;
}

void Submissions::finish_alone(const Submission& submission) const {
  WorkerWorld& world = environment_.world();
  const auto failed = [this](std::string why) {
    return Status::error(Code::failed_on_rank, std::move(why), environment_.own_rank());
  };
  if (!submission.failure.empty()) {
    world.finish(submission.handle, failed(submission.failure));
    return;
  }
  std::byte* output = submission.output;
  if (output == nullptr && is_gather(submission.collective)) {
    output = world.allocate_output(submission.handle, {submission.input_bytes});
    if (output == nullptr && submission.input_bytes > 0) {
      world.finish(submission.handle, failed("there is no memory for the " + std::to_string(submission.input_bytes) +
                                             " bytes that " + environment_.own_name() + " receives"));
      return;
    }
  }
  // A broadcast's root may have no output.
  if (output != nullptr && output != submission.input && submission.input_bytes > 0) {
    std::memmove(output, submission.input, submission.input_bytes);
  }
  world.finish(submission.handle, {});
}

void Submissions::count(Operation& operation) {
  operation.set_record(record_bytes(operation.submission(), operation.parts().size()));
  if (operation.failed_here()) {
    calls_.add_failed(operation.record());
  } else {
    calls_.add(operation.record());
  }
}

void Submissions::discount(const Operation& operation) {
  if (operation.failed_here()) {
    calls_.remove_failed(operation.record());
  } else {
    calls_.remove(operation.record());
  }
}

void Submissions::check_invariants() const {
  calls_.check_invariants();
  gates_.check_invariants();
  std::size_t open_bytes = gates_.bytes();
  std::size_t failed_bytes = 0;
  operations_.visit_open(
      [&](const Operation& operation) { (operation.failed_here() ? failed_bytes : open_bytes) += operation.record(); });
  SHOAL_INVARIANT(open_bytes == calls_.open_bytes());
  SHOAL_INVARIANT(failed_bytes == calls_.failed_bytes());
}

}  // namespace shoal::worker
