#include "drivers/sim/cluster.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shoal::sim {

namespace {

constexpr std::size_t kept_bytes = 1 << 20;

// Roughly the longest opening that the workload makes, without its inline data.
constexpr std::size_t opening_bytes = 512;

template <class Base>
class SeatWorld : public Base {
 public:
  SeatWorld(Network& network, Seat& seat) : network_(network), seat_(seat) {}

  void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token) override {
    network_.send(seat_, link, header, std::move(owned), borrowed, token);
  }
  void detach(Token token) override { network_.detach(seat_, token); }
  void close(LinkId link) override { network_.close(seat_, link); }

 protected:
  Network& network_;
  Seat& seat_;
};

class SimulatedServerWorld final : public SeatWorld<ServerWorld> {
 public:
  using SeatWorld::SeatWorld;
  void sum(Sum sum) override { network_.sum(seat_, std::move(sum)); }
};

class SimulatedWorkerWorld final : public SeatWorld<WorkerWorld> {
 public:
  SimulatedWorkerWorld(Network& network, Seat& seat, Cluster& cluster, Application& application, std::uint32_t rank)
      : SeatWorld(network, seat), cluster_(cluster), application_(application), rank_(rank) {}

  void sum(Sum sum) override { network_.sum(seat_, std::move(sum)); }
  void sending(std::uint64_t /*handle*/) override {}
  void received(std::uint64_t handle, Range range) override {
    local::is_internode(handle) ? cluster_.local().received(rank_, handle, range)
                                : application_.on_received(rank_, handle, range);
  }
  void finish(std::uint64_t handle, Status status) override {
    if (local::is_internode(handle)) {
      cluster_.local().averaged(rank_, handle, std::move(status));
    } else if (handle != 0) {  // which has failed among the ranks of a machine, and has ended there
      application_.on_finish(rank_, handle, std::move(status));
    }
  }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    if (local::is_internode(handle)) {
      return cluster_.local().allocate_told(rank_, handle, block_bytes);
    }
    std::byte* const offered = cluster_.local().offered_output(rank_, handle, block_bytes);
    return offered != nullptr ? offered : application_.on_allocate(rank_, handle, block_bytes);
  }
  void connect(std::uint32_t rank) override { cluster_.connect(rank_, rank); }
  void connect_server(std::uint32_t server, std::uint32_t attempt) override {
    cluster_.connect_server(rank_, server, attempt);
  }
  void warn(std::string text) override { application_.on_warning(rank_, text); }
  void called(std::uint32_t group, const wire::Opening& opening) override {
    application_.on_called(rank_, group, opening);
  }
  void ended() override { application_.on_ended(rank_); }
  void gone(std::uint32_t rank) override { cluster_.local().gone(rank_, rank); }
  std::uint64_t retransmissions(LinkId /*link*/) const override { return 0; }

 private:
  Cluster& cluster_;
  Application& application_;
  std::uint32_t rank_;
};

class SimulatedCoordinatorWorld final : public SeatWorld<CoordinatorWorld> {
 public:
  SimulatedCoordinatorWorld(Network& network, Seat& seat, Application& application)
      : SeatWorld(network, seat), application_(application) {}
  void warn(std::string text) override { application_.on_warning(0, text); }

 private:
  Application& application_;
};

wire::ServerId id_of(ActorId process) {
  wire::ServerId id{};
  std::memcpy(id.data(), &process, sizeof process);
  return id;
}

}  // namespace

Cluster::Cluster(const Plan& plan, Network& network, Application& application, Observer& observer)
    : plan_(plan), network_(network), observer_(observer), local_(plan, network, application) {
  make_workers(application);
  make_servers();
  make_coordinator(application);
  attach_all();
  stray_ = &network_.add_seat(outside, "a stranger");
}

void Cluster::make_workers(Application& application) {
  workers_.resize(plan_.config.size());
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    WorkerHost& host = workers_[rank];
    host.actor = network_.scheduler().add_actor();
    host.seat = &network_.add_seat(host.actor, "worker " + std::to_string(rank));
    host.world = std::make_unique<SimulatedWorkerWorld>(network_, *host.seat, *this, application, rank);
    host.pool = std::make_unique<BufferPool>(kept_bytes);
    host.worker = std::make_unique<Worker>(plan_.config, rank, *host.world, *host.pool);
    host.seat->machine = host.worker.get();
    local_.add_rank(rank, host.actor, [this, &host](const std::function<void(Worker&)>& what) {
      if (host.worker != nullptr) {
        network_.turn(*host.seat, [&](Machine&) { what(*host.worker); });
      }
    });
    if (!plan_.config.leaders.empty()) {
      local_.add_group(rank, plan_.groups.front(), 0, *host.worker);
    }
  }
}

std::uint32_t Cluster::make_group(std::uint32_t rank, const GroupPlan& group) {
  Worker& worker = *workers_[rank].worker;
  const std::uint32_t number = worker.make_group(group.ranks, group.name);
  local_.add_group(rank, group, number, worker);
  return number;
}

void Cluster::submit(std::uint32_t rank, Submission submission) {
  WorkerHost& host = workers_[rank];
  if (!local_.submit(rank, submission)) {
    network_.turn(*host.seat, [&](Machine&) { host.worker->submit(std::move(submission)); });
  }
}

void Cluster::input_ready(std::uint32_t rank, std::uint32_t group, std::uint64_t handle) {
  WorkerHost& host = workers_[rank];
  if (!local_.input_ready(rank, group, handle)) {
    network_.turn(*host.seat, [&](Machine&) { host.worker->input_ready(handle, ""); });
  }
}

void Cluster::join(std::uint32_t rank, std::uint32_t group, bool over) {
  WorkerHost& host = workers_[rank];
  for (const std::uint32_t one : local_.join(rank, group, over)) {
    network_.turn(*host.seat, [&](Machine&) { over ? host.worker->end_join(one) : host.worker->join(one, group); });
  }
}

void Cluster::leave(std::uint32_t rank) {
  WorkerHost& host = workers_[rank];
  if (!local_.leave(rank)) {
    network_.turn(*host.seat, [&](Machine&) { host.worker->leave(); });
  }
}

void Cluster::make_servers() {
  const std::vector<bool> linked = plan_.config.linked_ranks();
  for (std::uint32_t index = 0; index < plan_.config.servers(); ++index) {
    const std::int32_t rank = plan_.config.server_ranks[index];
    if (rank >= 0 && !linked[static_cast<std::size_t>(rank)]) {
      continue;
    }
    while (rank < 0 && dedicated_.size() <= plan_.server_processes[index]) {
      dedicated_.push_back(network_.scheduler().add_actor());
    }
    make_server(index, 0,
                rank < 0 ? dedicated_[plan_.server_processes[index]] : workers_[static_cast<std::size_t>(rank)].actor);
  }
}

Cluster::ServerHost& Cluster::make_server(std::uint32_t index, std::uint32_t attempt, ActorId actor) {
  ServerHost& host = servers_.emplace_back();
  host.index = index;
  host.attempt = attempt;
  host.dedicated = plan_.config.server_ranks[index] < 0;
  host.actor = actor;
  host.seat = &network_.add_seat(actor, "server " + std::to_string(index));
  host.world = std::make_unique<SimulatedServerWorld>(network_, *host.seat);
  host.pool = std::make_unique<BufferPool>(kept_bytes);
  JobConfig config = plan_.config;
  config.rate = plan_.server_rate;
  host.server = std::make_unique<Server>(config, index, *host.world, *host.pool);
  host.seat->machine = host.server.get();
  host.seat->after = [this, &host] { check_memory(host); };
  return host;
}

void Cluster::make_coordinator(Application& application) {
  coordinator_seat_ = &network_.add_seat(workers_[0].actor, "coordinator");
  coordinator_world_ = std::make_unique<SimulatedCoordinatorWorld>(network_, *coordinator_seat_, application);
  coordinator_ = std::make_unique<Coordinator>(plan_.config, *coordinator_world_);
  coordinator_seat_->machine = coordinator_.get();
}

void Cluster::attach_all() {
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    WorkerHost& host = workers_[rank];
    host.control = &network_.add_link(LinkKind::control, *host.seat, rank, *coordinator_seat_, 0);
    host.worker->attach_coordinator(host.control->id);
    coordinator_->attach_worker(host.control->other->id, rank);
    if (rank != 0 && plan_.has_two_networks()) {
      End& second = network_.add_link(LinkKind::control, *host.seat, rank, *coordinator_seat_, 1);
      host.worker->attach_coordinator(second.id);
      coordinator_->attach_worker(second.other->id, rank);
    }
    for (ServerHost& server : servers_) {
      End& end = network_.add_link(LinkKind::server, *host.seat, rank, *server.seat, server.index);
      host.worker->attach_server(end.id, server.index);
      server.server->attach_worker(end.other->id, rank);
    }
  }
}

void Cluster::connect(std::uint32_t from, std::uint32_t to) {
  if (from >= to || to >= workers_.size()) {
    observer_.violated("worker " + std::to_string(from) + " connects to rank " + std::to_string(to) +
                       ": the lower rank connects to the higher one");
    return;
  }
  if (!connected_.emplace(std::pair(from, to), nullptr).second) {
    observer_.violated("worker " + std::to_string(from) + " connects to rank " + std::to_string(to) + " a second time");
    return;
  }
  network_.trace("worker " + std::to_string(from) + "  connects to rank " + std::to_string(to));
  WorkerHost& near = workers_[from];
  WorkerHost& far = workers_[to];
  const Time slow = network_.random().chance(0.05) ? network_.random().between(0, 2 * second) : 0;
  const auto parted = parted_.find(std::minmax(near.actor, far.actor));
  const Time mended = parted == parted_.end() ? 0 : parted->second;
  const Time when = std::max(network_.now() + slow, mended) + network_.delay();
  if (far.worker == nullptr || unreachable_.count(to) > 0) {
    network_.scheduler().at(when, near.actor, [this, &near, to] {
      network_.turn(*near.seat, [&](Machine&) { near.worker->peer_unreachable(to, "connection refused"); });
    });
    return;
  }
  End& end = network_.add_link(LinkKind::peer, *near.seat, from, *far.seat, to);
  network_.attach_later(end, when, [&near, &end, to] { near.worker->attach_peer(end.id, to); });
  network_.attach_later(*end.other, when + network_.delay(), [this, &far, &end, from, to] {
    connected_[{from, to}] = end.other;
    far.worker->attach_peer(end.other->id, from);
  });
}

void Cluster::connect_again(std::uint32_t which) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const auto& [pair, end] : connected_) {
    if (end != nullptr && end->open) {
      pairs.push_back(pair);
    }
  }
  if (pairs.empty()) {
    return;
  }
  const auto [from, to] = pairs[which % pairs.size()];
  network_.trace("rank " + std::to_string(to) + " is connected to from rank " + std::to_string(from) + " again");
  WorkerHost& far = workers_[to];
  End& end = network_.add_link(LinkKind::peer, *stray_, from, *far.seat, to);
  const End* first = connected_[{from, to}];
  network_.attach_later(*end.other, network_.now() + network_.delay(), [&far, &end, first, from] {
    if (first->open) {
      far.worker->attach_peer(end.other->id, from);
    }
  });
}

void Cluster::part(std::uint64_t seed, Time duration, std::function<void(const End&)> broken) {
  Random random(seed);
  const bool breaks = duration >= peer_timeout;
  // Some time after the first has given up, the last has.
  constexpr Time longest_difference = 5 * second;
  const Time silence = breaks ? duration + longest_difference + second : duration;
  std::map<ActorId, bool> sides;
  const auto side = [&](ActorId actor) { return sides.try_emplace(actor, random.chance(0.5)).first->second; };
  // All that is between the two sides, or only some of it.
  const double share = random.pick({1.0, 0.5, 0.1});
  // Only what dedicated servers hear and say: no rank is lost then.
  const bool servers_only = random.chance(0.4);
  // In both directions, or in one: a kernel that has no answers gives up as well.
  const auto is_dumb = [one_way = random.chance(0.3), &random] { return !one_way || random.chance(0.5); };
  const std::size_t ends = network_.ends().size();
  for (std::size_t i = 0; i < ends; i += 2) {
    End& end = *network_.ends()[i];
    const auto pair = std::minmax(end.seat->actor, end.other->seat->actor);
    const bool stands = end.open && end.other->open && !end.cut && end.seat != stray_;
    const bool meant = !servers_only || (end.kind == LinkKind::server && plan_.config.server_ranks[end.service] < 0);
    if (!stands || !meant || side(pair.first) == side(pair.second) || !random.chance(share)) {
      continue;
    }
    Time& until = parted_[pair];
    until = std::max(until, network_.now() + silence);
    for (End* each : {&end, end.other}) {
      if (is_dumb()) {
        network_.silence(*each, silence);
      }
    }
    if (breaks) {
      network_.scheduler().at(network_.now() + duration + random.between(0, second), outside, [this, &end, broken] {
        if (!end.cut && !end.other->cut) {
          broken(end);
          network_.give_up_link(end, longest_difference, "connection timed out");
        }
      });
    }
  }
}

void Cluster::connect_server(std::uint32_t rank, std::uint32_t server, std::uint32_t attempt) {
  Random& random = network_.random();
  WorkerHost& near = workers_[rank];
  ActorId& known_process = dedicated_[plan_.server_processes[server]];
  if (network_.scheduler().stopped(known_process) && random.chance(0.5)) {
    network_.trace("a dedicated server is started again");
    known_process = network_.scheduler().add_actor();
  }
  const bool another = random.chance(0.05);
  const ActorId process = another ? network_.scheduler().add_actor() : known_process;
  const Time when = network_.now() + network_.delay();
  if (network_.scheduler().stopped(process) || random.chance(0.1)) {
    network_.scheduler().at(when, near.actor, [this, &near, server, attempt] {
      network_.turn(*near.seat, [&](Machine&) { near.worker->server_unreachable(server, attempt); });
    });
    return;
  }
  for (std::uint32_t lane : plan_.config.lanes_of(server)) {
    const auto is_it = [&](const ServerHost& host) {
      return host.actor == process && host.index == lane && host.attempt == attempt;
    };
    const auto known = std::find_if(servers_.begin(), servers_.end(), is_it);
    ServerHost& host = known != servers_.end() ? *known : make_server(lane, attempt, process);
    End& end = network_.add_link(LinkKind::server, *near.seat, rank, *host.seat, lane);
    const Time later = when + (random.chance(0.1) ? random.between(0, 2 * second) : 0);
    network_.attach_later(*end.other, later, [this, &host, &end, rank] {
      // After a forged RECONNECT: as a server's process refuses a rank that is connected already.
      if (!host.callers.insert(rank).second) {
        network_.close(*host.seat, end.other->id);
        return;
      }
      host.server->attach_worker(end.other->id, rank);
    });
    network_.attach_later(end, later + network_.delay(), [&near, &end, lane, attempt, process] {
      near.worker->attach_returned(end.id, lane, attempt, id_of(process));
    });
  }
}

void Cluster::end_process(ActorId actor, bool gently) {
  if (network_.scheduler().stopped(actor)) {
    return;
  }
  network_.end_process(actor, gently);
  for (ServerHost& host : servers_) {
    if (host.actor == actor) {
      host.server.reset();
    }
  }
  for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].actor == actor) {
      local_.end(rank, gently);
      workers_[rank].worker.reset();
    }
  }
  if (coordinator_seat_->actor == actor) {
    coordinator_.reset();
  }
}

// What it keeps for others is at most what they may lack: for each of them and each server the credit that it had once
// and may have had again, and what came with openings.
void Cluster::check_memory(const WorkerHost& host) {
  const JobConfig& config = plan_.config;
  const std::size_t epochs = 2 * plan_.faults.size() + 1;  // what is lost may come back
  const std::size_t each = 3 * std::max(plan_.most_credit, config.credit) + config.eager + config.segment;
  const std::size_t limit = epochs * config.size() * config.servers() * each + plan_.operations.size() * config.small +
                            (config.servers() + config.size()) * (config.segment + opening_bytes);
  if (host.pool->taken_bytes() > limit) {
    observer_.violated(host.seat->name + " holds " + std::to_string(host.pool->taken_bytes()) +
                       " bytes, more than the " + std::to_string(limit) + " that others may need");
  }
}

void Cluster::check_memory(const ServerHost& host) {
  const JobConfig& config = plan_.config;
  const std::size_t openings = plan_.operations.size() * (opening_bytes + config.small);
  const std::size_t limit =
      config.size() * (std::max(plan_.most_credit, config.credit) + config.eager + config.segment + 2 * openings);
  if (host.pool->taken_bytes() > limit) {
    observer_.violated("server " + std::to_string(host.index) + " holds " + std::to_string(host.pool->taken_bytes()) +
                       " bytes, more than the " + std::to_string(limit) + " that it granted");
  }
}

}  // namespace shoal::sim
