// What faults do to a run, and what may come of it: see simulation.h.
#include <algorithm>

#include "drivers/sim/simulation.h"

namespace shoal::sim {

void Simulation::strike(const Fault& fault) {
  using Kind = Fault::Kind;
  const std::uint32_t rank = fault.target % plan_.config.size();
  struck_until_ = std::max(struck_until_, network_.now() + fault.duration);
  if (may_give_up()) {
    disturbed_ = true;
    excuses_.insert({Code::timeout, Code::aborted, Code::peer_lost});
  }
  switch (fault.kind) {
    case Kind::break_link:
      return break_some_link(fault.target);
    case Kind::kill_rank:
      return kill_rank(rank);
    case Kind::kill_in_a_copy:
      return cluster_.local().die_in_a_copy(rank, static_cast<std::uint32_t>(fault.duration % 16));
    case Kind::kill_server:
      return kill_server(fault.target);
    case Kind::break_server:
      return break_some_server(fault.target);
    case Kind::break_network:
      return break_network(rank, static_cast<std::uint32_t>(fault.duration));
    case Kind::break_standby:
      return break_some_standby(fault.target);
    case Kind::freeze_rank:
      network_.trace("worker " + std::to_string(rank) + "  freezes");
      return network_.scheduler().freeze(cluster_.worker(rank).actor, network_.now() + fault.duration);
    case Kind::freeze_server:
      if (cluster_.dedicated_processes() > 0) {
        network_.trace("a dedicated server freezes");
        network_.scheduler().freeze(cluster_.dedicated_process(fault.target % cluster_.dedicated_processes()),
                                    network_.now() + fault.duration);
      }
      return;
    case Kind::partition:
      return part(fault);
    case Kind::delay_rank:
      return delay_rank(rank, fault.duration);
    case Kind::second_connection:
      return cluster_.connect_again(fault.target);
    case Kind::corrupt:
      disturbed_ = true;
      excuses_.insert({Code::peer_lost, Code::protocol});
      return network_.corrupt_after(fault.target + 1);
    case Kind::corrupt_elements:
      elements_damaged_ = true;
      // Leaders tell each other sizes in an all-gather's elements (protocol/local/crossing.h).
      if (!plan_.config.leaders.empty()) {
        disturbed_ = forged_ = true;
      }
      return network_.corrupt_elements_after(fault.target + 1);
    case Kind::forge:
      disturbed_ = forged_ = true;
      return network_.forge(0.02);
    case Kind::refuse_connect:
      disturbed_ = true;
      excuses_.insert(Code::peer_lost);
      return cluster_.refuse_connections(rank);
    case Kind::abort:
      return abort_rank(rank);
  }
}

// Whether ranks of a machine may end everything, where what ends an operation whose time is out does not come in time:
// the word of their leader, or of the network.
bool Simulation::may_give_up() const {
  return !plan_.config.leaders.empty() &&
         std::any_of(plan_.operations.begin(), plan_.operations.end(),
                     [](const OperationPlan& one) { return one.timeout < 600 * second; });
}

void Simulation::kill_rank(std::uint32_t rank) {
  Life& life = lives_[rank];
  if (cluster_.worker(rank).worker == nullptr) {
    return;
  }
  network_.trace("worker " + std::to_string(rank) + "  dies");
  life.killed = true;
  gone_ranks_.insert(rank);
  disturbed_ = disturbed_ || rank == 0 || plan_.holds_server(rank);
  excuses_.insert(Code::peer_lost);
  cluster_.end_process(cluster_.worker(rank).actor, false);
}

void Simulation::abort_rank(std::uint32_t rank) {
  Life& life = lives_[rank];
  Cluster::WorkerHost& host = cluster_.worker(rank);
  if (host.worker == nullptr || life.leaving) {
    return;
  }
  network_.trace("worker " + std::to_string(rank) + "  aborts");
  life.aborted = true;
  gone_ranks_.insert(rank);
  disturbed_ = disturbed_ || rank == 0 || plan_.holds_server(rank);
  // Where its links end before the coordinator's word comes, it is as good as dead.
  excuses_.insert({Code::aborted, Code::peer_lost});
  network_.turn(*host.seat, [&](Machine&) { host.worker->abort(abort_reason); });
}

void Simulation::kill_server(std::uint32_t target) {
  if (cluster_.dedicated_processes() == 0) {
    return;
  }
  const ActorId actor = cluster_.dedicated_process(target % cluster_.dedicated_processes());
  network_.trace("a dedicated server dies");
  for (const Cluster::ServerHost& host : cluster_.servers()) {
    if (host.actor == actor) {
      lose_server(host.index);
    }
  }
  cluster_.end_process(actor, false);
}

void Simulation::break_some_server(std::uint32_t target) {
  const auto& ends = network_.ends();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    End& end = *ends[(target + i) % ends.size()];
    if (end.open && end.other->open && end.kind == LinkKind::server && plan_.config.server_ranks[end.service] < 0) {
      lose_server(end.service);
      cut_off_.insert(end.client);
      network_.break_link(end, "connection reset by peer");
      return;
    }
  }
}

// In a rank's process, and averaging nothing on any of its lanes unless all dedicated ones are lost.
bool Simulation::stands_by(std::uint32_t server) const {
  const JobConfig& config = plan_.config;
  const std::vector<std::uint32_t> lanes = config.lanes_of(server);
  return config.server_ranks[server] >= 0 &&
         std::all_of(lanes.begin(), lanes.end(), [&](std::uint32_t lane) { return config.weights[lane] == 0; });
}

void Simulation::break_some_standby(std::uint32_t target) {
  const auto& ends = network_.ends();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    End& end = *ends[(target + i) % ends.size()];
    const bool stands = end.open && end.other->open && end.seat->actor != end.other->seat->actor;
    if (stands && end.kind == LinkKind::server && stands_by(end.service)) {
      lose_server(end.service);
      cut_off_.insert(end.client);
      network_.break_link(end, "connection reset by peer");
      return;
    }
  }
}

// All go on over the other one. (Links between workers, which are in one network alone, stay.)
void Simulation::break_network(std::uint32_t rank, std::uint32_t which) {
  const JobConfig& config = plan_.config;
  for (const auto& end : network_.ends()) {
    const bool stands = end->open && end->other->open && end->is_client;
    if (!stands || end->kind == LinkKind::peer || end->seat->actor == end->other->seat->actor) {
      continue;
    }
    const bool is_control = end->kind == LinkKind::control;
    const std::uint32_t there = is_control ? end->service : config.first_lane(end->service) % 2;
    const std::int32_t holder = is_control ? 0 : config.server_ranks[end->service];
    if (there != which || (end->client != rank && holder != static_cast<std::int32_t>(rank))) {
      continue;
    }
    if (!is_control) {
      lose_server(end->service);
      cut_off_.insert(end->client);
    }
    network_.break_link(*end, "connection reset by peer");
  }
}

void Simulation::part(const Fault& fault) {
  cluster_.part(fault.target, fault.duration, [this](const End& end) {
    if (end.kind == LinkKind::server && plan_.config.server_ranks[end.service] < 0) {
      lose_server(end.service);
      cut_off_.insert(end.client);
    } else {
      disturbed_ = true;
      excuses_.insert(Code::peer_lost);
    }
  });
}

void Simulation::delay_rank(std::uint32_t rank, Time duration) {
  for (const auto& end : network_.ends()) {
    const bool meant = end->open && !end->is_client && end->kind == LinkKind::server && end->client == rank;
    if (meant && end->seat->actor != end->other->seat->actor) {
      network_.silence(*end, duration);
    }
  }
}

void Simulation::lose_server(std::uint32_t index) {
  const JobConfig& config = plan_.config;
  for (std::uint32_t i = 0; i < config.servers(); ++i) {
    if (config.server_names[i] == config.server_names[index]) {
      lost_servers_.insert(i);
    }
  }
  bool in_use = false;
  bool others = false;
  for (std::uint32_t i = 0; i < config.servers(); ++i) {
    const bool dedicated = config.server_ranks[i] < 0;
    in_use = in_use || (config.weights[i] > 0 && lost_servers_.count(i) == 0);
    // Rank 0's process stays until the end; any other may be gone when its rank has left.
    const bool stands_by = config.server_ranks[i] == 0 && config.linked_ranks()[0] && gone_ranks_.empty();
    others = others || (lost_servers_.count(i) == 0 && (dedicated || stands_by));
  }
  if (!in_use && !others) {
    disturbed_ = true;
    excuses_.insert(Code::peer_lost);
  }
}

void Simulation::break_some_link(std::uint32_t target) {
  const auto& ends = network_.ends();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    End& end = *ends[(target + i) % ends.size()];
    // A process never loses its link to itself.
    if (end.open && end.other->open && end.seat->actor != end.other->seat->actor) {
      disturbed_ = true;
      excuses_.insert(Code::peer_lost);
      network_.break_link(end, "connection reset by peer");
      return;
    }
  }
}

}  // namespace shoal::sim
