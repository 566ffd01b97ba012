#include "engine/router.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/joining.h"
#include "protocol/keys.h"

namespace shoal::engine {

namespace {

// An operation of at most so many bytes is opened by the thread that submits it (docs/decisions/callers.md): what of it
// travels at once takes less time to write than waking another thread. More would keep the program from its own work.
constexpr std::size_t opened_by_caller = 64 * 1024;

std::size_t bytes_to_open(const Submission& submission) {
  return submission.awaits_input ? 0 : std::max(submission.input_bytes, submission.output_bytes);
}

// The opening of a part has the shape of the whole.
std::uint64_t bytes_of_whole(const wire::Opening& opening) {
  return std::accumulate(
      opening.shape.begin(), opening.shape.end(), std::uint64_t{size_of(opening.wire_dtype())},
      [](std::uint64_t bytes, std::int64_t rows) { return bytes * static_cast<std::uint64_t>(rows); });
}

}  // namespace

Router::Router(const JobConfig& config, std::uint32_t rank, OpenOperations& operations, Joins& joins,
               const Channels& channels, std::function<void(std::string)> warn)
    : config_(config),
      rank_(rank),
      operations_(operations),
      joins_(joins),
      channels_(channels),
      worker_(channels.front()->worker()),
      loop_(channels.front()->loop()),
      divided_(config),
      warn_(std::move(warn)) {}

Router::~Router() = default;

void Router::share_memory(std::shared_ptr<const shm::Memory> memory) {
  groups_ = std::make_unique<LocalGroups>(std::move(memory), config_, rank_, *this);
  std::vector<std::uint32_t> everyone(config_.size());
  std::iota(everyone.begin(), everyone.end(), 0U);
  add_to_local_groups(0, everyone, "");
}

void Router::add_to_local_groups(std::uint32_t number, const std::vector<std::uint32_t>& ranks,
                                 const std::string& name) {
  groups_->add_group(number, worker_.id_of(number), ranks, [&](const std::vector<std::uint32_t>& leaders) {
    return make_in_all_channels([&](Worker& worker) { return worker.make_group_of_nodes(leaders, number, name); });
  });
}

void Router::start() {
  if (groups_ != nullptr) {
    groups_->start();
  }
}

std::shared_ptr<std::byte> Router::allocate(std::size_t bytes, bool stays) {
  return groups_ == nullptr ? nullptr : groups_->node().allocate(bytes, stays);
}

std::uint32_t Router::make_group(const std::vector<std::uint32_t>& ranks, const std::string& name) {
  const std::uint32_t number = make_in_all_channels([&](Worker& worker) { return worker.make_group(ranks, name); });
  if (groups_ != nullptr) {
    add_to_local_groups(number, ranks, name);
  }
  return number;
}

// Workers count their groups. All of them make the same ones, so that a group has the same number everywhere.
std::uint32_t Router::make_in_all_channels(const std::function<std::uint32_t(Worker&)>& make) {
  const std::uint32_t number = make(worker_);
  each_other_channel([&](Channel& channel) {
    const std::uint32_t there = channel.loop().call([&] { return make(channel.worker()); });
    SHOAL_INVARIANT(there == number);
  });
  return number;
}

template <class Visit>
void Router::each_other_channel(Visit visit) {
  for (std::size_t channel = 1; channel < channels_.size(); ++channel) {
    visit(*channels_[channel]);
  }
}

// --- What is submitted ---

Router::Submitted Router::submit(Submission&& submission, bool passes, std::optional<Gate> gate) {
  const std::shared_ptr<shm::SharedGroup> group = groups_ == nullptr ? nullptr : groups_->of(submission.group);
  std::optional<Returning> returning;
  if (gate) {
    returning = Returning{std::move(*gate), submission.output, submission.output_bytes, submission.dtype};
  }
  std::shared_ptr<Course> course = records_.load(std::memory_order_relaxed) ? std::make_shared<Course>() : nullptr;
  // What ranks wait for each other with in a join is no call of the program's.
  const auto number = is_of_join(submission.name) ? std::nullopt : std::optional(submission.group);
  std::shared_ptr<Operation> operation =
      operations_.open(group, passes, std::move(returning), number, std::move(course));
  submission.handle = operation->handle();
  if (is_gather(submission.collective)) {
    operation->offer_output(std::exchange(submission.output, nullptr), std::exchange(submission.output_bytes, 0));
  }
  if (group == nullptr) {
    if (!submission.awaits_input && bytes_to_open(submission) <= opened_by_caller) {
      operation->carried_out_by(loop_.rounds());
    }
    const bool is_taken = to_worker(std::move(submission));
    return {std::move(operation), true, is_taken};
  }
  group->submit(std::move(submission));
  return {std::move(operation), false, true};
}

void Router::input_ready(std::uint64_t handle, std::uint32_t group, std::size_t bytes, const std::string& problem) {
  note(handle, &Course::input_ready);
  const std::shared_ptr<shm::SharedGroup> local = groups_ == nullptr ? nullptr : groups_->of(group);
  if (local != nullptr) {
    return local->input_ready(handle, problem);
  }
  // If the loop has ended, so has the operation.
  static_cast<void>(to_loop([this, handle, problem] { worker_.input_ready(handle, problem); }, bytes));
}

// False if the loop has ended: nobody will work on it.
bool Router::to_worker(Submission&& submission) {
  const std::size_t bytes = bytes_to_open(submission);
  divided_.divide(submission);
  return to_loop([this, submission = std::move(submission)]() mutable { worker_.submit(std::move(submission)); },
                 bytes);
}

bool Router::to_loop(Loop::Task task, std::size_t bytes) {
  return bytes <= opened_by_caller ? loop_.do_or_post(std::move(task)) : loop_.post(std::move(task));
}

// --- Ranks that have joined ---

// Where a node's ranks average together, its leader hears for all of them what other nodes call, in the leaders' group
// and, of what is no all-reduce, in the group itself. The local group tells the others.
void Router::join(std::uint32_t group, bool over) {
  std::vector<std::uint32_t> heard_in{group};
  if (const std::shared_ptr<shm::SharedGroup> local = groups_ == nullptr ? nullptr : groups_->of(group)) {
    local->join(group, over);
    const std::optional<std::uint32_t> leaders = groups_->leaders_group_of(group);
    heard_in = leaders ? std::vector{*leaders, group} : std::vector<std::uint32_t>();
  }
  for (const std::uint32_t one : heard_in) {
    static_cast<void>(
        loop_.post([this, one, group, over] { over ? worker_.end_join(one) : worker_.join(one, group); }));
  }
}

void Router::called(std::uint32_t group, const wire::Opening& opening) {
  const std::optional<Time> timeout = joins_.timeout_in(group);
  if (!timeout) {
    return;
  }
  std::uint64_t bytes = 0;
  Submission call = call_of_joined(opening, group, *timeout, bytes);
  if (bytes > 0 && channels_.size() > 1) {
    bytes = std::max<std::uint64_t>(bytes, bytes_of_whole(opening));
  }
  Joins::Arrays arrays;
  if (bytes > 0) {
    try {
      arrays = joins_.arrays(bytes);
    } catch (const std::bad_alloc&) {
      fail_call_of_joined(call, "there is no memory for the result of " + std::to_string(bytes) + " bytes");
    }
  }
  call.input = arrays.zeros.get();
  call.output = arrays.result.get();
  call.input_bytes = call.output_bytes = arrays.result == nullptr ? 0 : bytes;
  const std::shared_ptr<shm::SharedGroup> local = groups_ == nullptr ? nullptr : groups_->of(group);
  const auto note_end = [this, group, arrays = std::move(arrays)](const Status& status) {
    if (status.code != Code::cancelled) {
      joins_.note_made(group);
    }
  };
  call.handle = operations_.open_for_others(local, note_end)->handle();
  if (local != nullptr) {
    const std::optional<std::uint32_t> leaders = groups_->leaders_group_of(group);
    for (const std::uint32_t one : leaders ? std::vector{*leaders, group} : std::vector{group}) {
      static_cast<void>(loop_.post([this, one] { worker_.note_others_go_on(one); }));
    }
    return local->submit_later(std::move(call));
  }
  const std::uint64_t handle = call.handle;
  divided_.divide(call);
  if (!loop_.post([this, call = std::move(call)]() mutable { worker_.submit(std::move(call)); })) {
    operations_.finish(handle, closed_status());
  }
}

// --- What local groups ask of the worker ---

// They hear of the loop's end as of any other.
void Router::hand_to_worker(Submission submission) {
  const std::uint64_t handle = submission.handle;
  if (!to_worker(std::move(submission))) {
    end(handle, closed_status());
  }
}

void Router::release(std::uint64_t handle) {
  // close() may have been first.
  if (const std::shared_ptr<Operation> operation = operations_.find(handle); operation != nullptr) {
    operation->release();
  }
}

void Router::hand_over(Submission submission) { hand_to_worker(std::move(submission)); }

void Router::send_up(Submission submission) {
  submission.handle = local::internode_handle(submission.handle);
  hand_to_worker(std::move(submission));
}

// By the first channel: the others hear of an operation from it, and of its input after that.
void Router::contributed(std::uint64_t handle, Range range) {
  static_cast<void>(loop_.post([this, handle = local::internode_handle(handle), range] {
    worker_.contributed(handle, range);
    if (!divided_.has(handle)) {
      return;
    }
    each_other_channel([&](Channel& channel) {
      static_cast<void>(
          channel.loop().post([&channel, handle, range] { channel.worker().contributed(handle, range); }));
    });
  }));
}

void Router::fail_job(const Status& why) { abort(why.message); }

void Router::left(shm::SharedGroup& group) {
  if (groups_->note_left(group)) {
    static_cast<void>(loop_.post([this] { worker_.leave(); }));
  }
}

// --- For timelines ---

void Router::sending(std::uint64_t handle, std::uint64_t flush) {
  if (!records_.load(std::memory_order_relaxed)) {
    return;
  }
  operations_.note(local::own_handle(handle), [flush](Course& course) {
    course.sent = std::chrono::steady_clock::now();
    course.flush = flush;
  });
}

void Router::numbered(std::uint64_t handle, std::uint32_t occurrence) {
  std::vector<Submission> parts = divided_.number(handle, occurrence);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Channel& other = *channels_[i + 1];
    auto submit = [&other, part = std::move(parts[i])]() mutable { other.worker().submit(std::move(part)); };
    if (!other.loop().post(std::move(submit))) {
      end(handle, Status::error(Code::aborted, "another thread of Shoal has ended on this rank"));
    }
  }
  // One may have failed before the others were there.
  if (const Status why = parts.empty() ? Status() : divided_.failure_of(handle); !why.ok()) {
    fail_parts(handle, why);
  }
  if (records_.load(std::memory_order_relaxed)) {
    operations_.note(handle, [occurrence](Course& course) { course.number(occurrence); });
  }
}

void Router::note(std::uint64_t handle, Course::Time Course::*moment) {
  if (!records_.load(std::memory_order_relaxed)) {
    return;
  }
  operations_.note(local::own_handle(handle), [moment](Course& course) {
    // Leaders' all-gathers are two operations: all have called it when they have called the first.
    if (moment != &Course::all_called || course.all_called == Course::Time()) {
      course.*moment = std::chrono::steady_clock::now();
    }
  });
}

// --- What the worker says ---

void Router::received(std::uint64_t handle, Range range) { groups_->node().received(local::own_handle(handle), range); }

void Router::end(std::uint64_t handle, Status status) {
  auto [is_whole, is_first, whole] = divided_.end(handle, std::move(status));
  if (is_first) {
    fail_parts(handle, whole);
  }
  if (!is_whole) {
    return;
  }
  if (local::is_internode(handle)) {
    groups_->node().averaged(local::own_handle(handle), std::move(whole));
  } else {
    operations_.finish(handle, std::move(whole));
  }
}

// Other ranks may have divided it otherwise, and not know of these parts.
void Router::fail_parts(std::uint64_t handle, const Status& why) {
  for (const std::unique_ptr<Channel>& channel : channels_) {
    static_cast<void>(channel->loop().post([worker = &channel->worker(), handle, why] { worker->fail(handle, why); }));
  }
}

std::map<std::uint64_t, wire::Wait> Router::described(const std::vector<std::uint64_t>& handles) const {
  return groups_ == nullptr ? std::map<std::uint64_t, wire::Wait>() : groups_->described(handles);
}

bool Router::has_called(const wire::Call& call) const { return groups_ != nullptr && groups_->has_called(call); }

WorkerWorld::Failed Router::fail(const wire::Call& call, const Status& why) {
  if (groups_ == nullptr) {
    return {};
  }
  const auto [found, at_network] = groups_->fail(call, why);
  return {found, at_network == 0 ? std::nullopt : std::optional(local::internode_handle(at_network))};
}

// --- The end ---

void Router::fail(const std::function<Status(std::uint32_t group)>& loss_of) {
  if (groups_ != nullptr) {
    groups_->fail(loss_of);
  }
}

void Router::gone(std::uint32_t rank) {
  if (groups_ != nullptr) {
    groups_->gone(rank);
  }
}

void Router::leave() {
  if (groups_ != nullptr) {
    groups_->leave();
  } else {
    static_cast<void>(loop_.post([this] { worker_.leave(); }));
  }
}

// What it calls in them it calls before it leaves the first one.
void Router::leave_other_channels() {
  each_other_channel(
      [](Channel& channel) { static_cast<void>(channel.loop().post([&channel] { channel.worker().leave(); })); });
}

// The first channel comes last: when it has left, so do the others.
void Router::abort(const std::string& reason) {
  for (auto channel = channels_.rbegin(); channel != channels_.rend(); ++channel) {
    static_cast<void>((*channel)->loop().post([worker = &(*channel)->worker(), reason] { worker->abort(reason); }));
  }
}

void Router::close() {
  if (groups_ != nullptr) {
    groups_->close();
  }
}

}  // namespace shoal::engine
