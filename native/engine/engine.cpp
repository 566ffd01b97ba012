#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/gate_watch.h"
#include "engine/joins.h"
#include "engine/machines.h"
#include "engine/open_operations.h"
#include "engine/router.h"
#include "engine/transport.h"
#include "engine/waits.h"

namespace shoal::engine {

namespace {

using std::chrono::milliseconds;

// What is on its way when the links are closed (a goodbye, the reason of an abort) is given so long to arrive.
constexpr milliseconds farewell{10'000};
constexpr milliseconds abort_notice{1000};

}  // namespace

class Engine::Impl {
 public:
  Impl(std::uint32_t rank, JobConfig config);
  ~Impl() { close(); }

  Machines& machines() { return *machines_; }
  void share_memory(std::shared_ptr<const shm::Memory> memory) { router_->share_memory(std::move(memory)); }
  void start();
  void note_threads(std::uint32_t attempt, std::size_t strangers) { waits_.note_threads(attempt, strangers); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool stays) { return router_->allocate(bytes, stays); }
  std::uint32_t make_group(std::vector<std::uint32_t> ranks, std::string name);
  std::shared_ptr<Operation> submit(Submission&& submission, std::optional<Gate> gate);
  std::vector<std::uint64_t> take_finished() { return operations_.take_finished(); }
  Called join(std::uint32_t group, Time timeout);
  void end_join(std::uint32_t group);
  const Joins& joins() const { return joins_; }
  std::optional<Event> next_event(std::chrono::nanoseconds longest);
  void leave();
  bool left() const { return left_; }
  bool serves() const { return rank_ == 0 || serves_; }
  bool has_losses() const { return has_losses_; }
  void record(bool on) { router_->record(on); }
  std::optional<Status> loss_of_rank(std::uint32_t rank) const;
  void abort(std::string reason);
  void close();
  std::map<std::string, std::uint64_t> statistics() const;

 private:
  class World;
  class DecidingWorld;

  void post(Loop::Task task);
  bool is_shut_down(std::uint32_t group);
  Status refusal(std::uint32_t group);
  bool is_closed() const;
  WorkerWorld::Waiting waiting();
  void tell(Event event);
  void after_round();
  void note_losses();
  void wait_until_delivered(milliseconds longest);
  void end(milliseconds longest_farewell);

  const std::uint32_t rank_;
  const JobConfig config_;
  Loop loop_;
  std::unique_ptr<World> world_;
  std::unique_ptr<DecidingWorld> coordinator_world_;
  std::unique_ptr<Machines> machines_;
  GateWatch gates_;
  Joins joins_;
  OpenOperations operations_{gates_};
  std::unique_ptr<Router> router_;
  Waits waits_{operations_};

  mutable std::mutex mutex_;
  std::condition_variable event_came_;
  bool leaving_ = false;                  // guarded by mutex_
  bool closed_ = false;                   // guarded by mutex_
  std::deque<Event> events_;              // guarded by mutex_
  std::map<std::uint32_t, Status> lost_;  // by rank; guarded by mutex_
  Status end_of_job_;                     // guarded by mutex_

  std::mutex closing_;    // held while one thread starts or closes
  bool started_ = false;  // guarded by closing_
  std::atomic<bool> left_{false};
  std::atomic<bool> serves_{true};
  std::atomic<bool> has_losses_{false};
  std::atomic<std::uint64_t> buffer_bytes_{0};
};

class Engine::Impl::World final : public OnLoop<WorkerWorld> {
 public:
  World(Impl& engine, Loop& loop) : OnLoop(loop), engine_(engine) {}

  void sum(Sum sum) override { loop_.sum(*machine_, sum); }
  void numbered(std::uint64_t handle, std::uint32_t occurrence) override {
    engine_.router_->numbered(handle, occurrence);
  }
  void sending(std::uint64_t handle) override { engine_.router_->sending(handle, loop_.round()); }
  void reached(std::uint64_t handle, Milestone milestone) override {
    milestone == Milestone::all_called ? engine_.router_->all_called(handle) : engine_.router_->first_result(handle);
  }
  void received(std::uint64_t handle, Range range) override { engine_.router_->received(handle, range); }
  void finish(std::uint64_t handle, Status status) override { engine_.router_->end(handle, std::move(status)); }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    return engine_.router_->allocate_output(handle, block_bytes);
  }
  void connect(std::uint32_t rank) override { engine_.tell({"connect", static_cast<std::int32_t>(rank), ""}); }
  void connect_server(std::uint32_t server, std::uint32_t attempt) override {
    engine_.tell({"connect_server", static_cast<std::int32_t>(server), "", attempt});
  }
  void called(std::uint32_t group, const wire::Opening& opening) override { engine_.router_->called(group, opening); }
  void warn(std::string text) override { engine_.tell({"warning", -1, std::move(text)}); }
  void ended() override { engine_.tell({"ended", -1, ""}); }
  void gone(std::uint32_t rank) override { engine_.router_->gone(rank); }
  std::uint64_t retransmissions(LinkId link) const override { return loop_.retransmissions(link); }
  Waiting waiting() override { return engine_.waiting(); }
  std::map<std::uint64_t, wire::Wait> described_inside(const std::vector<std::uint64_t>& handles) override {
    return engine_.router_->described(handles);
  }
  bool has_called_inside(const wire::Call& call) override { return engine_.router_->has_called(call); }
  Failed fail_inside(const wire::Call& call, const Status& why) override { return engine_.router_->fail(call, why); }

 private:
  Impl& engine_;
};

class Engine::Impl::DecidingWorld final : public OnLoop<CoordinatorWorld> {
 public:
  DecidingWorld(Impl& engine, Loop& loop) : OnLoop(loop), engine_(engine) {}
  void warn(std::string text) override { engine_.tell({"warning", -1, std::move(text)}); }

 private:
  Impl& engine_;
};

// --- Making and starting ---

Engine::Impl::Impl(std::uint32_t rank, JobConfig config)
    : rank_(rank), config_(std::move(config)), loop_(LinkOptions::of(config_)) {
  world_ = std::make_unique<World>(*this, loop_);
  coordinator_world_ = std::make_unique<DecidingWorld>(*this, loop_);
  machines_ = std::make_unique<Machines>(rank, config_, loop_, *world_, *coordinator_world_);
  router_ = std::make_unique<Router>(config_, rank_, operations_, joins_, *machines_, loop_,
                                     [this](std::string text) { tell({"warning", -1, std::move(text)}); });
}

void Engine::Impl::start() {
  const std::lock_guard not_while_closing(closing_);
  // Only close() changes closed_, with this lock held.
  if (std::exchange(started_, true) || closed_) {
    throw std::runtime_error("this engine was started or closed before; make a new one");
  }
  machines_->connect();
  loop_.after_round = [this] { after_round(); };
  loop_.on_failure = [this](const std::string& why) {
    const Status failed =
        Status::error(Code::aborted, "Shoal's thread on rank " + std::to_string(rank_) + " failed: " + why);
    router_->fail([&failed](std::uint32_t) -> const Status& { return failed; });
    operations_.finish_all(failed);
    tell({"ended", -1, ""});
  };
  machines_->worker().watch_waits();
  loop_.start();
  router_->start();
}

// --- Operations ---

void Engine::Impl::post(Loop::Task task) { static_cast<void>(loop_.post(std::move(task))); }

std::uint32_t Engine::Impl::make_group(std::vector<std::uint32_t> ranks, std::string name) {
  try {
    return loop_.call([&] { return router_->make_group(ranks, name); });
  } catch (const std::system_error&) {
    throw;
  } catch (const std::runtime_error& error) {  // the loop has ended
    const Status why = refusal(0);
    throw std::runtime_error(why.code == Code::cancelled ? error.what() : why.message);
  }
}

std::shared_ptr<Operation> Engine::Impl::submit(Submission&& submission, std::optional<Gate> gate) {
  const std::uint32_t group = submission.group;
  if (is_shut_down(group)) {
    throw std::runtime_error("Shoal is shut down on rank " + std::to_string(rank_) +
                             ": nothing can be submitted; call shoal.init() first");
  }
  const bool passes = submission.timeout <= short_timeout;
  const std::size_t bytes = std::max(submission.input_bytes, submission.output_bytes);
  submission.awaits_input = gate.has_value() && submission.failure.empty();
  if (submission.awaits_input) {
    try {
      gates_.start();
    } catch (const std::system_error& error) {
      submission.awaits_input = false;
      submission.failure = std::string("the system has no thread that waits for its input: ") + error.what();
    }
  }
  const bool awaits_input = submission.awaits_input;
  auto [operation, by_worker, is_taken] = router_->submit(std::move(submission), passes, gate);
  if (awaits_input) {
    gates_.add(std::move(*gate), [this, handle = operation->handle(), group, bytes](const std::string& problem) {
      router_->input_ready(handle, group, bytes, problem);
    });
  }
  // A local group that was closed before takes it, and does nothing.
  if (!is_taken || (!by_worker && is_closed())) {
    operations_.finish(operation->handle(), refusal(group));
  }
  return operation;
}

Called Engine::Impl::join(std::uint32_t group, Time timeout) {
  if (!joins_.begin(group, timeout)) {
    throw std::runtime_error("rank " + std::to_string(rank_) +
                             " has joined in this group already, on another thread; call join once");
  }
  router_->join(group, false);
  return operations_.take_called(group);
}

void Engine::Impl::end_join(std::uint32_t group) {
  router_->join(group, true);
  joins_.end(group);
}

bool Engine::Impl::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

// By this program, that is: where a loss has ended the job, operations fail with it.
bool Engine::Impl::is_shut_down(std::uint32_t group) {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_ || !closed_) {
      return leaving_;
    }
  }
  return refusal(group).code == Code::cancelled;
}

// The loop has ended, or is about to: what was lost with it. Waits for a close() that has begun; the worker rests after
// it.
Status Engine::Impl::refusal(std::uint32_t group) {
  const std::lock_guard not_while_closing(closing_);
  Status why = machines_->worker().loss_of(group);
  return why.ok() ? closed_status() : why;
}

WorkerWorld::Waiting Engine::Impl::waiting() {
  bool leaves = false;
  {
    const std::lock_guard lock(mutex_);
    leaves = leaving_;
  }
  const auto [waiting, ask] = waits_.look(leaves);
  if (ask) {
    tell({"threads", -1, "", *ask});
  }
  return waiting;
}

// --- Events ---

void Engine::Impl::tell(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  event_came_.notify_one();
}

std::optional<Event> Engine::Impl::next_event(std::chrono::nanoseconds longest) {
  std::unique_lock lock(mutex_);
  event_came_.wait_for(lock, longest, [this] { return !events_.empty() || closed_; });
  if (events_.empty()) {
    return std::nullopt;
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Engine::Impl::after_round() {
  // In this order: a rank that has left and does not serve may end.
  serves_ = machines_->worker().serves();
  left_ = machines_->worker().left();
  const Status loss = machines_->worker().loss_of(0);
  if (!loss.ok()) {
    note_losses();
  }
  has_losses_ = !loss.ok();
  if (!loss.ok()) {
    router_->fail([this](std::uint32_t group) { return machines_->worker().loss_of(group); });
  }
  buffer_bytes_.store(machines_->buffer_bytes(), std::memory_order_relaxed);
}

void Engine::Impl::note_losses() {
  const Worker& worker = machines_->worker();
  const std::lock_guard lock(mutex_);
  if (lost_.size() < worker.lost().size()) {
    lost_.insert(worker.lost().begin(), worker.lost().end());
  }
  end_of_job_ = worker.end_of_job();
}

std::optional<Status> Engine::Impl::loss_of_rank(std::uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = lost_.find(rank); found != lost_.end()) {
    return found->second;
  }
  return end_of_job_.ok() ? std::nullopt : std::optional(end_of_job_);
}

// --- The end ---

void Engine::Impl::leave() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  router_->leave();
}

void Engine::Impl::abort(std::string reason) {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  post([this, reason = std::move(reason)] { machines_->worker().abort(reason); });
  wait_until_delivered(abort_notice);
  end(milliseconds(0));
}

// A socket that is closed before the other side's kernel has everything may take the rest with it.
void Engine::Impl::wait_until_delivered(milliseconds longest) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  // Twice: what a machine says may make another one of this process say something.
  int times_empty = 0;
  while (times_empty < 2 && std::chrono::steady_clock::now() < deadline) {
    try {
      times_empty = loop_.call([this] { return loop_.undelivered_bytes(); }) == 0 ? times_empty + 1 : 0;
    } catch (const std::runtime_error&) {
      return;  // the loop has ended
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void Engine::Impl::close() { end(farewell); }

void Engine::Impl::end(milliseconds longest_farewell) {
  const std::lock_guard one_at_a_time(closing_);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) {
      return;
    }
  }
  event_came_.notify_all();
  gates_.close();
  if (left_) {
    wait_until_delivered(longest_farewell);
  }
  loop_.stop();
  // What ended the job may have been told to the program before it was told to what is open.
  const Status loss = machines_->worker().loss_of(0);
  const Status why = loss.ok() ? closed_status() : loss;
  router_->fail([this](std::uint32_t group) { return machines_->worker().loss_of(group); });
  router_->close();
  machines_->remove();
  operations_.finish_all(why);
}

std::map<std::string, std::uint64_t> Engine::Impl::statistics() const {
  const Loop::Counters counters = loop_.counters();
  const auto [open, finished, passing] = operations_.counts();
  return {{"bytes_sent", counters.bytes_sent}, {"bytes_received", counters.bytes_received},
          {"links", counters.links},           {"open_operations", open},
          {"finished_operations", finished},   {"buffer_bytes", buffer_bytes_.load(std::memory_order_relaxed)}};
}

// --- The engine as others see it ---

Engine::Engine(std::uint32_t rank, JobConfig config) : impl_(std::make_unique<Impl>(rank, std::move(config))) {}
Engine::~Engine() = default;

void Engine::attach_coordinator(Connection&& connection) {
  impl_->machines().attach_coordinator(std::move(connection));
}
void Engine::attach_control(std::uint32_t rank, Connection&& connection) {
  impl_->machines().attach_control(rank, std::move(connection));
}
void Engine::attach_server(std::uint32_t index, Connection&& connection) {
  impl_->machines().attach_server(index, std::move(connection));
}
void Engine::attach_worker(std::uint32_t index, std::uint32_t rank, Connection&& connection) {
  impl_->machines().attach_worker(index, rank, std::move(connection));
}
void Engine::attach_peer(std::uint32_t rank, Connection&& connection) {
  impl_->machines().attach_peer(rank, std::move(connection));
}
void Engine::peer_unreachable(std::uint32_t rank, std::string why) {
  impl_->machines().peer_unreachable(rank, std::move(why));
}
void Engine::attach_returned(std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process,
                             Connection&& connection) {
  impl_->machines().attach_returned(index, attempt, process, std::move(connection));
}
void Engine::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  impl_->machines().server_unreachable(server, attempt);
}
void Engine::share_memory(std::shared_ptr<const shm::Memory> memory) { impl_->share_memory(std::move(memory)); }
void Engine::start() { impl_->start(); }
void Engine::note_threads(std::uint32_t attempt, std::size_t strangers) { impl_->note_threads(attempt, strangers); }
std::shared_ptr<std::byte> Engine::allocate(std::size_t bytes, bool stays) { return impl_->allocate(bytes, stays); }
std::uint32_t Engine::make_group(std::vector<std::uint32_t> ranks, std::string name) {
  return impl_->make_group(std::move(ranks), std::move(name));
}
std::shared_ptr<Operation> Engine::submit(Submission&& submission, std::optional<Gate> gate) {
  return impl_->submit(std::move(submission), std::move(gate));
}
Called Engine::join(std::uint32_t group, Time timeout) { return impl_->join(group, timeout); }
std::uint64_t Engine::calls_for_others(std::uint32_t group) const { return impl_->joins().made(group); }
bool Engine::await_calls_for_others(std::uint32_t group, std::uint64_t count, std::chrono::nanoseconds longest) const {
  return impl_->joins().await(group, count, longest);
}
void Engine::end_join(std::uint32_t group) { impl_->end_join(group); }
std::vector<std::uint64_t> Engine::take_finished() { return impl_->take_finished(); }
std::optional<Event> Engine::next_event(std::chrono::nanoseconds longest) { return impl_->next_event(longest); }
void Engine::leave() { impl_->leave(); }
bool Engine::left() const { return impl_->left(); }
bool Engine::serves() const { return impl_->serves(); }
bool Engine::has_losses() const { return impl_->has_losses(); }
void Engine::record(bool on) { impl_->record(on); }
std::optional<Status> Engine::loss_of_rank(std::uint32_t rank) const { return impl_->loss_of_rank(rank); }
void Engine::abort(std::string reason) { impl_->abort(std::move(reason)); }
void Engine::close() {
  if (!impl_.in_child()) {
    impl_->close();
  }
}
std::map<std::string, std::uint64_t> Engine::statistics() const { return impl_->statistics(); }

}  // namespace shoal::engine
