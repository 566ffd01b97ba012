// The processes of a simulated job with the product's own machines in them: every rank's process holds its worker, its
// co-located servers and, on rank 0, the coordinator; every dedicated server has a process of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "drivers/sim/local_ranks.h"
#include "drivers/sim/network.h"
#include "drivers/sim/workload.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/server/server.h"
#include "protocol/worker/worker.h"

namespace shoal::sim {

// What workers tell their users.
class Application : public LocalUser {
 public:
  virtual void on_received(std::uint32_t rank, std::uint64_t handle, Range range) = 0;
  virtual void on_ended(std::uint32_t rank) = 0;
};

class Cluster {
 public:
  struct WorkerHost {
    ActorId actor = outside;
    Seat* seat = nullptr;
    End* control = nullptr;
    std::unique_ptr<WorkerWorld> world;
    std::unique_ptr<BufferPool> pool;
    std::unique_ptr<Worker> worker;  // null once the process is gone
  };
  struct ServerHost {
    std::uint32_t index = 0;
    std::uint32_t attempt = 0;  // since when: 0 is the start of the job
    ActorId actor = outside;
    bool dedicated = false;
    Seat* seat = nullptr;
    std::unique_ptr<ServerWorld> world;
    std::unique_ptr<BufferPool> pool;
    std::unique_ptr<Server> server;   // null once the process is gone
    std::set<std::uint32_t> callers;  // ranks that have connected since the start of the job
  };

  Cluster(const Plan& plan, Network& network, Application& application, Observer& observer);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  WorkerHost& worker(std::uint32_t rank) { return workers_[rank]; }
  std::deque<ServerHost>& servers() { return servers_; }
  std::size_t dedicated_processes() const { return dedicated_.size(); }
  ActorId dedicated_process(std::size_t index) const { return dedicated_[index]; }

  // What the application does: a rank makes its groups, calls an operation, leaves.
  std::uint32_t make_group(std::uint32_t rank, const GroupPlan& group);
  void submit(std::uint32_t rank, Submission submission);
  void input_ready(std::uint32_t rank, std::uint32_t group, std::uint64_t handle);
  void join(std::uint32_t rank, std::uint32_t group, bool over);
  void leave(std::uint32_t rank);
  LocalRanks& local() { return local_; }

  // Ends a process and destroys its machines.
  void end_process(ActorId actor, bool gently);
  // From now on nobody can connect to this rank's worker.
  void refuse_connections(std::uint32_t rank) { unreachable_.insert(rank); }
  void connect(std::uint32_t from, std::uint32_t to);
  // Makes a second link between two workers that have one.
  void connect_again(std::uint32_t which);
  // Nothing passes between some processes and the others for so long, drawn by the seed. Beyond the peer timeout the
  // links between them break: `broken` is told of each that does.
  void part(std::uint64_t seed, Time duration, std::function<void(const End&)> broken);
  // A process that has died may have been started again, and its address may lead to another one now and then.
  void connect_server(std::uint32_t rank, std::uint32_t server, std::uint32_t attempt);
  void check_memory(const WorkerHost& host);

 private:
  void make_workers(Application& application);
  void make_servers();
  ServerHost& make_server(std::uint32_t index, std::uint32_t attempt, ActorId actor);
  void make_coordinator(Application& application);
  void attach_all();
  // A server takes no more memory than it has granted.
  void check_memory(const ServerHost& host);

  const Plan& plan_;
  Network& network_;
  Observer& observer_;
  LocalRanks local_;
  std::vector<WorkerHost> workers_;
  std::deque<ServerHost> servers_;  // also those of before
  std::vector<ActorId> dedicated_;
  Seat* coordinator_seat_ = nullptr;
  std::unique_ptr<CoordinatorWorld> coordinator_world_;
  std::unique_ptr<Coordinator> coordinator_;
  std::set<std::uint32_t> unreachable_;
  // Peer links by their ranks: the end of the higher one, once it knows of it.
  std::map<std::pair<std::uint32_t, std::uint32_t>, End*> connected_;
  Seat* stray_ = nullptr;  // where connections come from that nobody expects
  // Until when nothing passes between processes, by their actors.
  std::map<std::pair<ActorId, ActorId>, Time> parted_;
};

}  // namespace shoal::sim
