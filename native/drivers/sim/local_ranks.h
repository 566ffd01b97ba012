// The ranks of simulated machines: the memory that they share, the local groups of each (protocol/local), and how these
// meet the rank's worker, as the engine's router has them meet.
//
// A rank takes its steps a few at a time, with anything in between: other ranks' steps, a stop, its death. A death in
// the middle of a copy leaves a part of it. What a group asks of the worker, and what the worker says, comes
// after any delay, in order. Arrays may lie in the memory of the whole machine, where other ranks reach them. A rank
// that is not rung sleeps until its own deadline: if it finds a result only then, that is a violation.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drivers/sim/heap_arena.h"
#include "drivers/sim/heap_group.h"
#include "drivers/sim/network.h"
#include "drivers/sim/workload.h"
#include "protocol/local/local_group.h"
#include "protocol/local/network_results.h"
#include "protocol/worker/worker.h"

namespace shoal::sim {

// What local groups tell whoever uses them, and what they do with memory.
class LocalUser {
 public:
  virtual ~LocalUser() = default;
  virtual void on_finish(std::uint32_t rank, std::uint64_t handle, Status status) = 0;
  virtual std::byte* on_allocate(std::uint32_t rank, std::uint64_t handle,
                                 const std::vector<std::uint64_t>& block_bytes) = 0;
  virtual void on_warning(std::uint32_t rank, const std::string& text) = 0;
  // `group`: this rank's number of it.
  virtual void on_called(std::uint32_t rank, std::uint32_t group, const wire::Opening& opening) = 0;
  virtual void on_local_access(std::uint32_t rank, std::span<const std::byte> memory) = 0;
  // In another rank's arena. `counts`: it writes, or what it reads may count.
  virtual void on_reached(std::uint32_t rank, std::span<const std::byte> memory, bool counts) = 0;
  // The rank has died in the middle of a step.
  virtual void on_death(std::uint32_t rank) = 0;
  virtual void violated(const std::string& what) = 0;
};

class LocalRanks {
 public:
  LocalRanks(const Plan& plan, Network& network, LocalUser& user);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  ~LocalRanks();

  // Before anything else of the rank. `call_worker`: has the rank's worker do something, as one of its events.
  using CallWorker = std::function<void(const std::function<void(Worker&)>&)>;
  void add_rank(std::uint32_t rank, ActorId actor, CallWorker call_worker);
  // A group of the plan, whose number in the worker is this. Within one of the worker's events.
  void add_group(std::uint32_t rank, const GroupPlan& group, std::uint32_t number, Worker& worker);

  // Memory for an array that the other ranks of the machine can reach; null: there is none.
  std::byte* allocate(std::uint32_t rank, std::size_t bytes);
  // False: its group has no local group here, so it is the worker's.
  bool submit(std::uint32_t rank, Submission& submission);
  bool input_ready(std::uint32_t rank, std::uint32_t group, std::uint64_t handle);
  // The rank joins in this group, or has joined there no more. Returns the groups of the worker in which it has to hear
  // what others call (as the engine's router).
  std::vector<std::uint32_t> join(std::uint32_t rank, std::uint32_t group, bool over);
  // Where the result of a gather is to go, if the caller has said so and it fits; null: nowhere yet.
  std::byte* offered_output(std::uint32_t rank, std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes);
  // What the worker says of internode operations.
  void received(std::uint32_t rank, std::uint64_t handle, Range range);
  void averaged(std::uint32_t rank, std::uint64_t handle, Status status);
  using BlockBytes = std::vector<std::uint64_t>;
  std::byte* allocate_told(std::uint32_t rank, std::uint64_t handle, const BlockBytes& by_node);
  // What the worker says of another rank of the machine.
  void gone(std::uint32_t rank, std::uint32_t other);
  // Groups of which something is lost fail.
  void fail(std::uint32_t rank, const Worker& worker);
  // Then the worker leaves. False: there is no local group; the worker leaves at once.
  bool leave(std::uint32_t rank);
  // The process is gone.
  void end(std::uint32_t rank, bool gently);
  // The rank dies in the middle of one of its next copies.
  void die_in_a_copy(std::uint32_t rank, std::uint32_t copies);

  std::size_t open_operations(std::uint32_t rank) const;

 private:
  class Member;
  struct Host {
    ActorId actor = outside;
    CallWorker call_worker;
    std::vector<std::unique_ptr<Member>> members;           // the machine's own first
    std::map<std::uint32_t, Member*> by_group;              // by number in the worker
    std::map<std::uint32_t, std::uint32_t> leaders_groups;  // the same, on a leader: of its leaders' group
    std::unique_ptr<HeapArena> arena;                       // null: it shares no memory
    std::size_t not_left = 0;
    std::optional<std::uint32_t> dies_in;                   // copies
    std::map<std::uint64_t, std::span<std::byte>> offered;  // outputs of gathers, by handle
  };

  // The memory of one machine, or of one group of some of its ranks.
  const HeapGroup& memory_for(const std::vector<std::uint32_t>& ranks, const Hash128& id, bool is_node);
  std::vector<std::uint32_t> node_of(std::uint32_t rank) const;
  Member& member(std::uint32_t rank, const Hash128& id, const std::vector<std::uint32_t>& ranks, bool is_node);
  void note_left(Member& member);

  const Plan& plan_;
  Network& network_;
  LocalUser& user_;
  std::vector<Host> hosts_;                                                           // by rank
  std::map<std::pair<Hash128, std::uint32_t>, std::unique_ptr<HeapGroup>> memories_;  // by id and leader
  std::map<const HeapGroup*, std::vector<Member*>> sharing_;                          // by place; null: not there
};

}  // namespace shoal::sim
