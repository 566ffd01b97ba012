// Where the ranks of a node meet: matches the operations that they call, carries out all-reduces in the memory that
// they share, and leaves every other operation to the network once all ranks have called it with the same arguments.
//
// Promises:
//   * Operations are matched by their keys, as on servers: ranks may call them in different orders. Those that disagree
//     are told, all of them, who called what.
//   * Contributions are added in the order of the group's members, with the kernels of the servers: the same bits.
//   * Every operation that was submitted is finished or handed to the network, exactly once.
//   * Whoever waits does the work. Where nobody waits, the attendant does, a thread of its own. Both sleep when
//     there is nothing to do.
//   * A small all-reduce is done when its last member has called it: contributions lie beside the openings. Large ones
//     flow one after the other, in the order in which the first rank of the node has found that all have called them.
//
// Every method may be called by any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "drivers/shm/memory.h"
#include "protocol/job.h"
#include "protocol/node.h"

namespace shoal::shm {

// What a room asks of its engine. None of these may call the room back.
class RoomWorld {
 public:
  virtual ~RoomWorld() = default;
  virtual void sending(std::uint64_t handle) = 0;
  virtual void finish(std::uint64_t handle, Status status) = 0;
  // All ranks have called it with the same arguments: the rest is for the network.
  virtual void hand_over(Submission submission) = 0;
  virtual void warn(std::string text) = 0;
  // leave() was called and nothing is open any more.
  virtual void empty() = 0;
};

class Room {
 public:
  // All ranks of the job share this memory. `rank`: this one's.
  Room(std::shared_ptr<const Memory> memory, const JobConfig& config, std::uint32_t rank, RoomWorld& world);
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room();

  void start();
  // A group whose members are all ranks, in an order of its own.
  void add_group(std::uint32_t number, const Hash128& id, std::vector<std::uint32_t> ranks);
  bool serves(std::uint32_t group) const;

  void submit(Submission submission);
  // Works, and sleeps, until `done` or for so long. `done` is asked by this thread only.
  void wait(const std::function<bool()>& done, std::chrono::nanoseconds longest);

  // Nothing more can be done here, and why: what can still be finished is, all else fails, also what comes later.
  void fail_all(const Status& why);
  // Nothing is submitted any more: the other ranks are told once nothing is open.
  void leave();
  // Ends the attendant. What is open stays open, and the engine is not called any more.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::shm
