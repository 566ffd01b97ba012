// The state machines of one rank (protocol/machine.h) in one channel and how they are connected: its worker, the
// servers in its process and, on rank 0, the coordinator, all on one loop.
//
// Connections are owned from here on, also where a method throws: std::invalid_argument if there is no such server or
// rank, or this rank does not have the machine; std::runtime_error once the loop has ended. The attach and unreachable
// methods may be called by any thread; the others say by which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/buffer.h"
#include "drivers/common/connection.h"
#include "engine/transport.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/job.h"
#include "protocol/worker/worker.h"

namespace shoal::engine {

class Machines {
 public:
  using WorkerOnLoop = OnLoop<WorkerWorld>;
  using CoordinatorOnLoop = OnLoop<CoordinatorWorld>;

  // All of these must outlive it. Throws std::invalid_argument for a configuration that cannot be worked with.
  Machines(std::uint32_t rank, const JobConfig& config, Loop& loop, WorkerOnLoop& worker_world,
           CoordinatorOnLoop& coordinator_world);

  void attach_coordinator(Connection connection);
  void attach_control(std::uint32_t rank, Connection connection);
  void attach_server(std::uint32_t index, Connection connection);
  void attach_worker(std::uint32_t index, std::uint32_t rank, Connection connection);
  void attach_peer(std::uint32_t rank, Connection connection);
  void peer_unreachable(std::uint32_t rank, std::string why);
  void attach_returned(std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process,
                       Connection connection);
  void server_unreachable(std::uint32_t server, std::uint32_t attempt);

  // Before the loop starts: connects the machines to each other, in memory.
  void connect();
  // After the loop has stopped: it forgets them.
  void remove();

  // By the loop's thread, or while the loop does not run.
  Worker& worker() { return *worker_; }
  const Worker& worker() const { return *worker_; }
  // Bytes in the buffers of all machines.
  std::size_t buffer_bytes() const;

 private:
  void check_rank(std::uint32_t rank) const;
  void check_server(std::uint32_t index) const;

  const std::uint32_t rank_;
  const JobConfig& config_;
  Loop& loop_;
  BufferPool pool_{pool_bytes};
  std::unique_ptr<Worker> worker_;
  std::map<std::uint32_t, std::unique_ptr<HostedServer>> servers_;  // by index
  std::unique_ptr<Coordinator> coordinator_;                        // on rank 0
};

}  // namespace shoal::engine
