#include "doors/pass.h"

#include <cstring>
#include <utility>

#include "doors/door.h"
#include "protocol/submission.h"

namespace shoal::doors {

namespace {

const char* const layout = "layout";

}  // namespace

Pass::Pass(Terms terms, std::shared_ptr<const GradientPlan> plan, Arenas arenas, Hooks hooks)
    : terms_(std::move(terms)),
      plan_(std::move(plan)),
      arenas_(std::move(arenas)),
      hooks_(std::move(hooks)),
      votes_(plan_->votes),
      unready_(plan_->buffers.size()),
      opened_(plan_->buffers.size()),
      is_end_opened_(plan_->end_label.empty()),
      came_(plan_->places.size()) {
  for (const GradientPlan::Place& place : plan_->places) {
    for (std::uint32_t buffer = place.first_buffer; buffer < place.end_buffer; ++buffer) {
      ++unready_[buffer];
    }
  }
}

Pass::~Pass() { hooks_.free(std::move(arenas_)); }

void Pass::fail(const Terms& terms, const GradientPlan& plan, const std::string& why) {
  const auto fail_one = [&](const std::string& label) {
    Submission submission;
    submission.name = terms.prefix + "." + label;
    submission.failure = why;
    call(terms.group, std::move(submission), [](const Outcome&) {});
  };
  fail_one(layout);
  for (const GradientPlan::Buffer& buffer : plan.buffers) {
    fail_one(buffer.label);
  }
  if (!plan.end_label.empty()) {
    fail_one(plan.end_label);
  }
}

void Pass::begin() {
  {
    const std::lock_guard lock(mutex_);
    ++going_on_;
  }
  submit_bytes(layout, votes_, [self = shared_from_this()](const Status& status) { self->compared(status); });
}

// The greatest of all ranks.
void Pass::submit_bytes(const std::string& label, std::vector<std::uint8_t>& bytes,
                        std::function<void(const Status&)> then) {
  Submission submission;
  submission.collective = Collective::all_reduce;
  submission.name = terms_.prefix + "." + label;
  submission.op = Operator::max;
  submission.dtype = DType::uint8;
  submission.shape = {static_cast<std::int64_t>(bytes.size())};
  submission.input = submission.output = reinterpret_cast<std::byte*>(bytes.data());
  submission.input_bytes = submission.output_bytes = bytes.size();
  call(terms_.group, std::move(submission), [then = std::move(then)](const Outcome& outcome) { then(outcome.status); });
}

void Pass::compared(const Status& status) {
  bool agreed = true;
  for (std::size_t index = 0; index < votes_.size() / 2; ++index) {
    agreed = agreed && votes_[index] == 255 - votes_[votes_.size() / 2 + index];
  }
  if (!status.ok() || agreed) {
    ended(status);
    return;
  }
  hooks_.disagreed(shared_from_this());  // explain() ends it
}

void Pass::explain(std::string how) {
  const Status why = Status::error(Code::mismatch, std::move(how));
  {
    // Rather than what came of it: buffers of different sizes.
    const std::lock_guard lock(mutex_);
    failure_ = why;
  }
  ended(why);
}

Status Pass::ready(std::uint32_t gradient, const void* data, std::size_t bytes) {
  const auto named = [&] {
    return "gradient " + std::to_string(gradient) + " of '" + terms_.prefix + "' on " + here();
  };
  if (gradient >= plan_->places.size()) {
    return Status::error(Code::limit, named() + " is not of this step");
  }
  const GradientPlan::Place& place = plan_->places[gradient];
  if (bytes != place.bytes) {
    return Status::error(Code::mismatch, named() + " has " + std::to_string(bytes) + " bytes, and had " +
                                             std::to_string(place.bytes) + " when the step was made");
  }
  {
    const std::lock_guard lock(mutex_);
    if (is_abandoned_ || came_[gradient]) {
      return Status::error(Code::limit,
                           named() + (came_[gradient] ? " has come twice" : " came when its step was over"));
    }
    came_[gradient] = true;
  }
  std::memcpy(slot(gradient), data, bytes);
  std::vector<std::uint32_t> complete;
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(gradient);
    for (std::uint32_t buffer = place.first_buffer; buffer < place.end_buffer; ++buffer) {
      if (--unready_[buffer] == 0 && !opened_[buffer]) {
        opened_[buffer] = true;
        ++going_on_;
        complete.push_back(buffer);
      }
    }
  }
  submit(complete);
  return {};
}

void Pass::submit(const std::vector<std::uint32_t>& buffers) {
  for (const std::uint32_t number : buffers) {
    const GradientPlan::Buffer& buffer = plan_->buffers[number];
    Submission submission;
    submission.collective = Collective::all_reduce;
    submission.name = terms_.prefix + "." + buffer.label;
    submission.op = terms_.op;
    submission.dtype = plan_->arenas[buffer.arena].dtype;
    submission.input_bytes = submission.output_bytes = buffer.end - buffer.begin;
    submission.shape = {static_cast<std::int64_t>(submission.input_bytes / size_of(submission.dtype))};
    submission.output = arenas_[buffer.arena].get() + buffer.begin;
    submission.input = submission.output;
    call(terms_.group, std::move(submission),
         [self = shared_from_this()](const Outcome& outcome) { self->ended(outcome.status); });
  }
}

void Pass::finish(Finished finished) {
  bool is_whole = true;
  bool opens_end = false;
  {
    const std::lock_guard lock(mutex_);
    for (const bool came : came_) {
      is_whole = is_whole && came;
    }
    finished_ = std::move(finished);
    opens_end = is_whole && !is_end_opened_;
    if (opens_end) {
      is_end_opened_ = true;
      ++going_on_;
    }
  }
  if (opens_end) {
    submit_bytes(plan_->end_label, end_, [self = shared_from_this()](const Status& status) { self->ended(status); });
  }
  if (!is_whole) {
    open_as_failed("a gradient has not come");
  }
  look_for_end();
}

void Pass::abandon() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || is_over_) {
      return;
    }
    is_abandoned_ = true;
  }
  open_as_failed("the step broke off before all gradients were there");
  look_for_end();
}

// Tells the other ranks that this one cannot take part in what it has not opened yet.
void Pass::open_as_failed(const std::string& why) {
  std::vector<std::string> unopened;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t buffer = 0; buffer < opened_.size(); ++buffer) {
      if (!opened_[buffer]) {
        opened_[buffer] = true;
        unopened.push_back(plan_->buffers[buffer].label);
      }
    }
    if (!is_end_opened_) {
      is_end_opened_ = true;
      unopened.push_back(plan_->end_label);
    }
    going_on_ += unopened.size();
  }
  for (const std::string& label : unopened) {
    Submission submission;
    submission.name = terms_.prefix + "." + label;
    submission.failure = why;
    call(terms_.group, std::move(submission),
         [self = shared_from_this()](const Outcome& outcome) { self->ended(outcome.status); });
  }
}

void Pass::ended(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    --going_on_;
    if (!status.ok() && failure_.ok()) {
      failure_ = status;
    }
  }
  look_for_end();
}

void Pass::look_for_end() {
  Finished finished;
  Status failure;
  std::vector<std::int64_t> arrivals;
  {
    const std::lock_guard lock(mutex_);
    if (is_over_ || going_on_ > 0 || !(finished_ || is_abandoned_)) {
      return;
    }
    is_over_ = true;
    finished = std::exchange(finished_, nullptr);
    failure = failure_;
    arrivals = std::move(arrivals_);
  }
  hooks_.over(finished && failure.ok(), std::move(arrivals));
  if (finished) {
    finished(failure);
  }
}

std::byte* Pass::slot(std::uint32_t gradient) const {
  const GradientPlan::Place& place = plan_->places[gradient];
  return arenas_[place.arena].get() + place.begin;
}

}  // namespace shoal::doors
