#include "engine/machines.h"

#include <stdexcept>
#include <utility>

#include "protocol/server/server.h"

namespace shoal::engine {

Machines::Machines(std::uint32_t rank, const JobConfig& config, Loop& loop, WorkerOnLoop& worker_world,
                   CoordinatorOnLoop& coordinator_world)
    : rank_(rank), config_(config), loop_(loop) {
  if (const std::string problem = problem_with(config_); !problem.empty()) {
    throw std::invalid_argument(problem);
  }
  check_rank(rank);
  worker_ = std::make_unique<Worker>(config_, rank, worker_world, pool_);
  worker_world.bind(*worker_);
  loop_.add(*worker_);
  const bool is_linked = config_.linked_ranks()[rank];
  for (std::uint32_t index = 0; index < config_.servers(); ++index) {
    if (is_linked && config_.server_ranks[index] == static_cast<std::int32_t>(rank)) {
      servers_[index] = std::make_unique<HostedServer>(config_, index, loop_);
    }
  }
  if (rank == 0) {
    coordinator_ = std::make_unique<Coordinator>(config_, coordinator_world);
    coordinator_world.bind(*coordinator_);
    loop_.add(*coordinator_);
  }
}

void Machines::check_rank(std::uint32_t rank) const {
  if (rank >= config_.size()) {
    throw std::invalid_argument("there is no rank " + std::to_string(rank) + " in a job of " +
                                std::to_string(config_.size()) + " ranks");
  }
}

void Machines::check_server(std::uint32_t index) const {
  if (index >= config_.servers()) {
    throw std::invalid_argument("there is no server " + std::to_string(index) + " in this job");
  }
}

void Machines::attach_coordinator(Connection connection) {
  loop_.call([&] { worker_->attach_coordinator(loop_.add_control_link(*worker_, std::move(connection))); });
}

void Machines::attach_control(std::uint32_t rank, Connection connection) {
  check_rank(rank);
  if (coordinator_ == nullptr) {
    throw std::invalid_argument("rank " + std::to_string(rank_) + " is not the coordinator: rank 0 is");
  }
  loop_.call([&] { coordinator_->attach_worker(loop_.add_control_link(*coordinator_, std::move(connection)), rank); });
}

void Machines::attach_server(std::uint32_t index, Connection connection) {
  check_server(index);
  loop_.call([&] { worker_->attach_server(loop_.add_link(*worker_, std::move(connection)), index); });
}

void Machines::attach_worker(std::uint32_t index, std::uint32_t rank, Connection connection) {
  check_rank(rank);
  const auto server = servers_.find(index);
  if (server == servers_.end()) {
    throw std::invalid_argument("rank " + std::to_string(rank_) + " holds no server " + std::to_string(index));
  }
  Server& machine = server->second->machine;
  loop_.call([&] { machine.attach_worker(loop_.add_link(machine, std::move(connection)), rank); });
}

void Machines::attach_peer(std::uint32_t rank, Connection connection) {
  check_rank(rank);
  loop_.call([&] { worker_->attach_peer(loop_.add_link(*worker_, std::move(connection)), rank); });
}

void Machines::peer_unreachable(std::uint32_t rank, std::string why) {
  check_rank(rank);
  static_cast<void>(loop_.post([this, rank, why = std::move(why)] { worker_->peer_unreachable(rank, why); }));
}

void Machines::attach_returned(std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process,
                               Connection connection) {
  check_server(index);
  loop_.call(
      [&] { worker_->attach_returned(loop_.add_link(*worker_, std::move(connection)), index, attempt, process); });
}

void Machines::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  check_server(server);
  static_cast<void>(loop_.post([this, server, attempt] { worker_->server_unreachable(server, attempt); }));
}

void Machines::connect() {
  for (auto& [index, server] : servers_) {
    const auto [here, there] = loop_.add_pair(*worker_, server->machine);
    server->machine.attach_worker(there, rank_);
    worker_->attach_server(here, index);
  }
  if (coordinator_ != nullptr) {
    const auto [here, there] = loop_.add_pair(*worker_, *coordinator_);
    coordinator_->attach_worker(there, rank_);
    worker_->attach_coordinator(here);
  }
}

void Machines::remove() {
  loop_.remove(*worker_);
  for (auto& [index, server] : servers_) {
    loop_.remove(server->machine);
  }
  if (coordinator_ != nullptr) {
    loop_.remove(*coordinator_);
  }
}

std::size_t Machines::buffer_bytes() const {
  std::size_t bytes = pool_.taken_bytes();
  for (const auto& [index, server] : servers_) {
    bytes += server->pool.taken_bytes();
  }
  return bytes;
}

}  // namespace shoal::engine
