#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/channel.h"
#include "engine/gate_watch.h"
#include "engine/joins.h"
#include "engine/open_operations.h"
#include "engine/router.h"
#include "engine/said_together.h"
#include "engine/transport.h"
#include "engine/waits.h"

namespace shoal::engine {

namespace {

using std::chrono::milliseconds;

// What is on its way when the links are closed (a goodbye, the reason of an abort) is given so long to arrive.
constexpr milliseconds farewell{10'000};
constexpr milliseconds abort_notice{1000};

}  // namespace

class Engine::Impl final : public ChannelUser {
 public:
  Impl(std::uint32_t rank, JobConfig config);
  ~Impl() override { close(); }

  // Of the channel with this number, or that serves the lane with this server index. Throws std::invalid_argument if
  // there is none.
  Machines& machines(std::uint32_t channel = 0);
  struct Place {
    Machines& machines;
    std::uint32_t index;  // of the server, in the channel
  };
  Place place_of(std::uint32_t server);
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
  bool left() const;
  bool serves() const;
  bool has_losses() const;
  void record(bool on) { router_->record(on); }
  std::optional<Status> loss_of_rank(std::uint32_t rank) const;
  void abort(const std::string& reason);
  void close();
  std::map<std::string, std::uint64_t> statistics() const;

 private:
  Router& router() override { return *router_; }
  void tell(Event event) override;
  void warn(std::uint32_t channel, std::string text) override;
  WorkerWorld::Waiting waiting() override;
  void ended(std::uint32_t channel) override;

  bool is_shut_down(std::uint32_t group);
  Status refusal(std::uint32_t group);
  Status loss_of(std::uint32_t group) const;
  bool is_closed() const;
  void after_round(Channel& channel);
  bool note_losses(const Channel& channel);
  void end_without(Channel& failed, const Status& why);
  void wait_until_delivered(milliseconds longest);
  void end(milliseconds longest_farewell);

  const std::uint32_t rank_;
  const JobConfig config_;
  std::vector<std::unique_ptr<Channel>> channels_;  // one at least
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
  std::set<std::uint32_t> ended_;         // channels; guarded by mutex_
  SaidTogether said_;                     // guarded by mutex_
  std::map<std::uint32_t, Status> lost_;  // by rank; guarded by mutex_
  struct Known {
    std::set<std::uint32_t> ranks;  // that are lost
    bool has_ended = false;         // the job
  };
  std::vector<Known> known_;  // by channel; guarded by mutex_
  Status end_of_job_;         // guarded by mutex_

  std::mutex closing_;            // held while one thread starts or closes
  bool started_ = false;          // guarded by closing_
  bool others_may_leave_ = true;  // until the first channel has left; for its thread
};

// --- Making and starting ---

Engine::Impl::Impl(std::uint32_t rank, JobConfig config) : rank_(rank), config_(std::move(config)) {
  if (const std::string problem = problem_with(config_); !problem.empty()) {
    throw std::invalid_argument(problem);
  }
  known_.resize(config_.channels);
  for (std::uint32_t channel = 0; channel < config_.channels; ++channel) {
    channels_.push_back(std::make_unique<Channel>(channel, rank, config_, *this));
  }
  router_ = std::make_unique<Router>(config_, rank_, operations_, joins_, channels_,
                                     [this](std::string text) { warn(0, std::move(text)); });
}

Machines& Engine::Impl::machines(std::uint32_t channel) {
  if (channel >= channels_.size()) {
    throw std::invalid_argument("there is no channel " + std::to_string(channel) + " in this job");
  }
  return channels_[channel]->machines();
}

Engine::Impl::Place Engine::Impl::place_of(std::uint32_t server) {
  if (server >= config_.servers()) {
    throw std::invalid_argument("there is no server " + std::to_string(server) + " in this job");
  }
  return {machines(config_.channel_of(server)), config_.index_in_channel(server)};
}

void Engine::Impl::start() {
  const std::lock_guard not_while_closing(closing_);
  // Only close() changes closed_, with this lock held.
  if (std::exchange(started_, true) || closed_) {
    throw std::runtime_error("this engine was started or closed before; make a new one");
  }
  for (const std::unique_ptr<Channel>& channel : channels_) {
    channel->machines().connect();
    channel->loop().after_round = [this, &channel = *channel] { after_round(channel); };
    channel->loop().on_failure = [this, &channel = *channel](const std::string& why) {
      end_without(channel,
                  Status::error(Code::aborted, "Shoal's thread on rank " + std::to_string(rank_) + " failed: " + why));
    };
  }
  channels_.front()->worker().watch_waits();
  for (const std::unique_ptr<Channel>& channel : channels_) {
    channel->loop().start();
  }
  router_->start();
}

// --- Operations ---

std::uint32_t Engine::Impl::make_group(std::vector<std::uint32_t> ranks, std::string name) {
  try {
    return channels_.front()->loop().call([&] { return router_->make_group(ranks, name); });
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

// A loop has ended, or is about to: what was lost with it. Waits for a close() that has begun; the workers rest after
// it.
Status Engine::Impl::refusal(std::uint32_t group) {
  const std::lock_guard not_while_closing(closing_);
  const std::lock_guard lock(mutex_);
  const Status why = closed_ ? loss_of(group) : end_of_job_;
  return why.ok() ? closed_status() : why;
}

// While no loop runs.
Status Engine::Impl::loss_of(std::uint32_t group) const {
  for (const std::unique_ptr<Channel>& channel : channels_) {
    if (Status why = channel->worker().loss_of(group); !why.ok()) {
      return why;
    }
  }
  return {};
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

void Engine::Impl::warn(std::uint32_t channel, std::string text) {
  if (channels_.size() > 1) {
    const std::lock_guard lock(mutex_);
    if (!said_.add(channel, text)) {
      return;
    }
  }
  tell({"warning", -1, std::move(text)});
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

void Engine::Impl::ended(std::uint32_t channel) {
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    ended_.insert(channel);
    all = ended_.size() == channels_.size();
  }
  if (all) {
    tell({"ended", -1, ""});
  }
}

void Engine::Impl::after_round(Channel& channel) {
  const Worker& worker = channel.worker();
  const bool has_losses = !worker.loss_of(0).ok();
  const bool all_know = has_losses && note_losses(channel);
  channel.note();
  if (channel.number() == 0 && channel.left() && std::exchange(others_may_leave_, false)) {
    router_->leave_other_channels();
  }
  if (all_know) {
    router_->fail([&worker](std::uint32_t group) { return worker.loss_of(group); });
  }
  // By one broken connection a rank is lost in one channel alone. There it knows; in the others it says so itself.
  if (!worker.end_of_job().ok() && !worker.has_coordinator() && channel.has_to_tell_end()) {
    for (const std::unique_ptr<Channel>& other : channels_) {
      static_cast<void>(
          other->loop().post([&worker = other->worker(), why = worker.end_of_job()] { worker.end(why); }));
    }
  }
}

// Whether every channel knows what this one knows: none of them works on any more for whoever is concerned.
bool Engine::Impl::note_losses(const Channel& channel) {
  const Worker& worker = channel.worker();
  const std::lock_guard lock(mutex_);
  if (end_of_job_.ok()) {
    end_of_job_ = worker.end_of_job();
  }
  Known& known = known_[channel.number()];
  known.has_ended = !worker.end_of_job().ok();
  for (std::size_t i = known.ranks.size(); i < worker.lost().size(); ++i) {
    known.ranks.insert(worker.lost()[i].first);
    lost_.insert(worker.lost()[i]);
  }
  return std::all_of(known_.begin(), known_.end(), [&known](const Known& other) {
    return other.has_ended || (!known.has_ended && std::includes(other.ranks.begin(), other.ranks.end(),
                                                                 known.ranks.begin(), known.ranks.end()));
  });
}

// Its thread has failed. What it had to do for operations will never be done; the other channels end their parts, and
// then nobody uses the arrays any more.
void Engine::Impl::end_without(Channel& failed, const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (end_of_job_.ok()) {
      end_of_job_ = why;
    }
  }
  const auto end_all = [this, why] {
    router_->fail([&why](std::uint32_t) -> const Status& { return why; });
    operations_.finish_all(why);
    tell({"ended", -1, ""});
  };
  const auto going_on = std::make_shared<std::atomic<std::size_t>>(channels_.size());
  const auto end_one = [going_on, end_all] {
    if (going_on->fetch_sub(1) == 1) {
      end_all();
    }
  };
  for (const std::unique_ptr<Channel>& other : channels_) {
    const bool is_posted = other.get() != &failed && other->loop().post([&worker = other->worker(), why, end_one] {
      worker.end(why);
      end_one();
    });
    if (!is_posted) {
      end_one();
    }
  }
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

bool Engine::Impl::left() const {
  return std::all_of(channels_.begin(), channels_.end(), [](const auto& channel) { return channel->left(); });
}

bool Engine::Impl::serves() const {
  return rank_ == 0 ||
         std::any_of(channels_.begin(), channels_.end(), [](const auto& channel) { return channel->serves(); });
}

bool Engine::Impl::has_losses() const {
  return std::any_of(channels_.begin(), channels_.end(), [](const auto& channel) { return channel->has_losses(); });
}

void Engine::Impl::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  router_->abort(reason);
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
      std::size_t undelivered = 0;
      for (const std::unique_ptr<Channel>& channel : channels_) {
        undelivered += channel->loop().call([&loop = channel->loop()] { return loop.undelivered_bytes(); });
      }
      times_empty = undelivered == 0 ? times_empty + 1 : 0;
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
  if (left()) {
    wait_until_delivered(longest_farewell);
  }
  for (const std::unique_ptr<Channel>& channel : channels_) {
    channel->loop().stop();
  }
  // What ended the job may have been told to the program before it was told to what is open.
  const Status loss = loss_of(0);
  const Status why = loss.ok() ? closed_status() : loss;
  router_->fail([this](std::uint32_t group) { return loss_of(group); });
  router_->close();
  for (const std::unique_ptr<Channel>& channel : channels_) {
    channel->machines().remove();
  }
  operations_.finish_all(why);
}

std::map<std::string, std::uint64_t> Engine::Impl::statistics() const {
  const auto [open, finished, passing] = operations_.counts();
  std::map<std::string, std::uint64_t> sums{{"open_operations", open}, {"finished_operations", finished}};
  for (const std::unique_ptr<Channel>& channel : channels_) {
    const Loop::Counters counters = channel->loop().counters();
    sums["bytes_sent"] += counters.bytes_sent;
    sums["bytes_received"] += counters.bytes_received;
    sums["links"] += counters.links;
    sums["buffer_bytes"] += channel->buffer_bytes();
  }
  return sums;
}

// --- The engine as others see it ---

Engine::Engine(std::uint32_t rank, JobConfig config) : impl_(std::make_unique<Impl>(rank, std::move(config))) {}
Engine::~Engine() = default;

void Engine::attach_coordinator(std::uint32_t channel, Connection&& connection) {
  impl_->machines(channel).attach_coordinator(std::move(connection));
}
void Engine::attach_control(std::uint32_t channel, std::uint32_t rank, Connection&& connection) {
  impl_->machines(channel).attach_control(rank, std::move(connection));
}
void Engine::attach_server(std::uint32_t index, Connection&& connection) {
  const auto [machines, here] = impl_->place_of(index);
  machines.attach_server(here, std::move(connection));
}
void Engine::attach_worker(std::uint32_t index, std::uint32_t rank, Connection&& connection) {
  const auto [machines, here] = impl_->place_of(index);
  machines.attach_worker(here, rank, std::move(connection));
}
void Engine::attach_peer(std::uint32_t rank, Connection&& connection) {
  impl_->machines().attach_peer(rank, std::move(connection));
}
void Engine::peer_unreachable(std::uint32_t rank, std::string why) {
  impl_->machines().peer_unreachable(rank, std::move(why));
}
void Engine::attach_returned(std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process,
                             Connection&& connection) {
  const auto [machines, here] = impl_->place_of(index);
  machines.attach_returned(here, attempt, process, std::move(connection));
}
void Engine::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  const auto [machines, here] = impl_->place_of(server);
  machines.server_unreachable(here, attempt);
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
void Engine::abort(const std::string& reason) { impl_->abort(reason); }
void Engine::close() {
  if (!impl_.in_child()) {
    impl_->close();
  }
}
std::map<std::string, std::uint64_t> Engine::statistics() const { return impl_->statistics(); }

}  // namespace shoal::engine
