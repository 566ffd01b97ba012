// The native side of one rank: its machines on one loop a channel (channel.h), the memory that it shares with other
// ranks of its node, and what the program has submitted.
//
// Every method may be called by any thread. Operations that were submitted are always finished, by close() at the
// latest. In a child made by fork() every method but close() throws std::runtime_error.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/common/connection.h"
#include "drivers/common/gate.h"
#include "drivers/shm/memory.h"
#include "engine/operation.h"
#include "os/fork_guard.h"
#include "protocol/job.h"
#include "protocol/worker/worker.h"

namespace shoal::engine {

// Something that the application has to do or to know.
struct Event {
  std::string kind;         // "connect", "connect_server", "warning", "threads" or "ended"
  std::int32_t index = -1;  // of the rank or server
  std::string text;
  std::uint32_t attempt = 0;  // of connect_server and threads
};

class Engine {
 public:
  // Throws std::invalid_argument for a configuration that cannot be worked with.
  Engine(std::uint32_t rank, JobConfig config);
  ~Engine();

  // Connections are made and authenticated. The engine owns them from here on, also when it throws
  // std::invalid_argument: there is no such server or rank, or this rank does not have the machine.
  // Each channel has control links of its own. Servers have the indices of the whole job.
  void attach_coordinator(std::uint32_t channel, Connection&& connection);
  void attach_control(std::uint32_t channel, std::uint32_t rank, Connection&& connection);
  void attach_server(std::uint32_t index, Connection&& connection);
  void attach_worker(std::uint32_t index, std::uint32_t rank, Connection&& connection);
  void attach_peer(std::uint32_t rank, Connection&& connection);
  void peer_unreachable(std::uint32_t rank, std::string why);
  // The answer to the event "connect_server", which names the first of a server's lanes in a channel: a link for each
  // lane there, all to this process; or server_unreachable().
  void attach_returned(std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process,
                       Connection&& connection);
  void server_unreachable(std::uint32_t server, std::uint32_t attempt);
  // Before start(): the ranks of this node share this memory. It is for operations of groups within the node, and for
  // those of all ranks: all kinds if there is no other node, otherwise all-reduces.
  void share_memory(std::shared_ptr<const shm::Memory> memory);
  void start();
  // The answer to the event "threads": how many threads of this process have never called Shoal, but might.
  void note_threads(std::uint32_t attempt, std::size_t strangers);
  // Memory for this rank's arrays, all zero. An all-reduce needs no slots if the arrays of all ranks of the node lie in
  // such memory. Null if there is no such memory. Throws std::system_error if the machine lacks memory. May outlive the
  // engine. `stays`: a device will know it by its pages.
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool stays = false);

  std::uint32_t make_group(std::vector<std::uint32_t> ranks, std::string name);
  // Chooses the submission's handle. Its arrays must live until the handle is among take_finished().
  // `gate`: the submission's input is there when it opens, and it is passed when the operation is done. Its arrays must
  // live until then, too.
  std::shared_ptr<Operation> submit(Submission&& submission, std::optional<Gate> gate = {});
  // This rank has no more data for the group: from now on it calls with zeros what the others call there, and fails
  // what it has nothing for (protocol/joining.h). Returns what its program had called there since the last join.
  // `timeout`: of calls for others. Throws std::runtime_error if it has joined there already.
  Called join(std::uint32_t group, Time timeout);
  // How many calls for others have ever ended; waits until so many have, at most `longest`.
  std::uint64_t calls_for_others(std::uint32_t group) const;
  bool await_calls_for_others(std::uint32_t group, std::uint64_t count, std::chrono::nanoseconds longest) const;
  void end_join(std::uint32_t group);
  // Handles that were finished since the last call.
  std::vector<std::uint64_t> take_finished();
  std::optional<Event> next_event(std::chrono::nanoseconds longest);

  void leave();
  bool left() const;
  // Whether others need this process after it has left: its server averages at present, or the coordinator is here.
  bool serves() const;
  // Whether a rank or server is known to be lost, or this rank itself has ended with an error.
  bool has_losses() const;
  // Why nothing more can come from that rank: it is lost, or the job has ended. None: neither is known; it may have
  // left.
  std::optional<Status> loss_of_rank(std::uint32_t rank) const;
  // Waits at most a second until the others have heard of it.
  void abort(const std::string& reason);
  void close();

  // From now on operations note when they come to what (Operation::course); or no more.
  void record(bool on);
  std::map<std::string, std::uint64_t> statistics() const;

 private:
  class Impl;
  os::ForkGuard<Impl> impl_;
};

}  // namespace shoal::engine
