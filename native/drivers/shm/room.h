// Where the ranks of a node, or some of them, meet: matches the operations that they call, and carries them out in the
// memory that they share.
//
// Where the job has other nodes too, an all-reduce is the first rank's to take to the network for all of them
// (room_uplink.cpp): it sends their sum from its own array as it grows, and what comes back there goes to all. Every
// other operation is left to the network once all ranks of the node have called it with the same arguments.
//
// Promises:
//   * Operations are matched by their keys, as on servers: ranks may call them in different orders. Those that disagree
//     are told, all of them, who called what.
//   * Contributions are added in the order of the group's members, with the kernels of the servers: the same bits.
//   * Every operation that was submitted is finished or handed to the network, exactly once.
//   * Whoever waits does the work. Where nobody waits, the attendant does, a thread of its own. Both sleep when
//     there is nothing to do.
//   * A small operation is done when its last member has called it: contributions lie beside the openings. Large ones
//     flow one after the other, in the order in which the first rank of the node has found that all have called them.
//
// Every method may be called by any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/range.h"
#include "base/status.h"
#include "drivers/shm/memory.h"
#include "protocol/job.h"
#include "protocol/worker/worker.h"
#include "wire/waits.h"

namespace shoal::shm {

// What a room asks of its engine.
class RoomWorld {
 public:
  virtual ~RoomWorld() = default;

  // None of these may call the room back.
  virtual void sending(std::uint64_t handle) = 0;
  virtual void finish(std::uint64_t handle, Status status) = 0;
  // Memory for what a gather brings, by member of the group. Null: there is none.
  virtual std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) = 0;
  virtual void warn(std::string text) = 0;

  // For the network. These may call the room back: no lock of its is held. One at a time, in the order in which they
  // came up.

  // All ranks have called it with the same arguments: the rest is for the network.
  virtual void hand_over(Submission submission) = 0;
  // The first rank of a node among several: an all-reduce among the nodes. `received` and `averaged` tell what comes of
  // it, under the submission's handle.
  virtual void send_up(Submission submission) = 0;
  virtual void contributed(std::uint64_t handle, Range range) = 0;
  // The room of a node among several has given up, so the job has to.
  virtual void fail_job(const Status& why) = 0;
  // leave() was called, nothing is open any more, and the others can read so.
  virtual void empty() = 0;
};

// How all-reduces of a group go on to the other nodes.
struct Uplink {
  std::uint32_t group = 0;             // of the nodes' first ranks, in the network; on the first rank
  std::uint32_t ranks = 0;             // that are added in all
  std::uint32_t largest = 0;           // ranks of the largest node
  std::vector<std::uint32_t> weights;  // of the servers: what each averages (protocol/sharding.h)
  std::uint64_t shared_from = 0;       // bytes of an operation that all of them work on
};

class Room {
 public:
  // `members`: the job's ranks that share this memory, by their places in it, the same for all; `rank` is one of them.
  // `has_uplink`: these are a node among several, so what they call goes on to the other nodes.
  Room(std::shared_ptr<const Memory> memory, const JobConfig& config, std::vector<std::uint32_t> members,
       std::uint32_t rank, bool has_uplink, RoomWorld& world);
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room();

  void start();
  // A group of all members of the room, in an order of its own, and with an uplink of all ranks of the job.
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const std::optional<Uplink>& uplink = {});

  // Memory for arrays of this rank's: an all-reduce of arrays that all lie in such memory is done straight from one to
  // the other, and straight from the first rank's to the network and back where there are other nodes. Zero; null where
  // there is none of the kind. May be kept longer than the room. Throws std::system_error.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  void submit(Submission submission);
  // Works, and sleeps, until `done` or for so long. `done` is asked by this thread only.
  void wait(const std::function<bool()>& done, std::chrono::nanoseconds longest);

  // What has become of an operation that was sent up: by the network's thread, which it does not hold up.
  void received(std::uint64_t handle, Range range);
  void averaged(std::uint64_t handle, Status status);

  // What operations are that have been submitted and not finished or handed to the network, by handle; without their
  // members. Of these handles, in rising order.
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles);
  bool has_called(const wire::Call& call);
  // This operation can never be complete: it fails for all members. `found`: it is open here. `at_network`: the handle
  // under which it was sent up, if it is the network that has to fail it; else 0.
  struct Failed {
    bool found = false;
    std::uint64_t at_network = 0;
  };
  Failed fail(const wire::Call& call, const Status& why);

  // Nothing more can be done here, and why; the network uses no array any more. What can still be finished is, all else
  // fails, also what comes later.
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
