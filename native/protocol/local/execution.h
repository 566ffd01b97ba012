// How operations that all ranks of a group have called are carried out in the memory that they share: small ones at
// once, large ones chunk by chunk, and results that come back from other nodes part by part.
//
//   an operation is moving from the moment at which it flows or is sent up until forget()
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/local/delivery.h"
#include "protocol/local/flow.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/members.h"
#include "protocol/local/network_results.h"
#include "protocol/local/operation.h"
#include "protocol/local/outbox.h"
#include "protocol/local/world.h"

namespace shoal::local {

class Execution {
 public:
  // Bytes of crossing arrays that are kept for the next ones: new memory costs as much as using it twice.
  static constexpr std::size_t most_kept = std::size_t{64} * 1024 * 1024;

  // `arrays`: for crossing arrays.
  Execution(const GroupMemory& memory, const Members& members, std::uint32_t own, bool has_other_nodes,
            BufferPool& arrays, Outbox& outbox, World& world);

  // --- Beginning ---

  // Carries out a small operation at once. Not ok: there is no memory for its output.
  Status finish_small(Operation& operation);
  // A small operation that goes on to other nodes: the leader sends up the node's sum.
  void send_up_small(Operation& operation);
  // An all-gather that goes on to other nodes: the leader tells the other leaders how long its node's blocks are.
  void send_up_sizes(Operation& operation);
  // The network is done with one. False: it has brought sizes alone, and the operation flows once all ranks of the node
  // have memory for the blocks.
  bool hear_sizes(Operation& operation, const Told& told);
  // Of a reduce-scatter or an all-gather that goes up, before any rank of the node begins: takes this rank's memory for
  // what an all-gather brings, and the leader's crossing array. Not ok: there is no room.
  Status make_room(Operation& operation);
  // The leader says the result of a small operation to the others, and takes an all-gather's. Not ok: this rank has no
  // memory for it.
  Status hand_out_small(Operation& operation, const Told& told);
  // Another rank: what the leader has heard. Throws std::runtime_error for what cannot be.
  void read_blocks(Operation& operation, ConstBytes body) const;
  // The result of a small operation, as the leader says it to all, goes into this rank's output. Not ok: this rank has
  // no memory for it. Throws std::runtime_error for what cannot be a result.
  Status take_small(Operation& operation, ConstBytes body, ConstBytes result);
  // A large operation is the next to flow, as the leader decides: on the leader, and on another rank, which reads what
  // the leader says. It begins once all its openings are there. Throws std::runtime_error for what nobody says.
  void admit(const Hash128& key);
  void read_admission(const Hash128& key, ConstBytes body);
  bool is_admitted(const Hash128& key) const;
  // The key of the next that begins, if there is one.
  std::optional<Hash128> next_admitted() const {
    return admitted_.empty() ? std::nullopt : std::optional(admitted_.front().key);
  }
  // Not ok: there is no memory for its output.
  Status begin_next_admitted(Operation& operation);

  // --- What comes back ---

  void chunk_averaged(Operation& operation, Range chunk);
  // Another rank: what the leader says of a part of the result, which can be taken. Throws std::runtime_error for
  // what cannot be.
  void read_part(Operation& operation, ConstBytes body);
  // Parts that have not been handed out never will be.
  void drop_parts(Operation& operation);

  // --- Steps ---

  // One thing with one chunk. Whether there was one to be done.
  bool step() { return flow_.step() || delivery_.step(); }
  bool passes_chain() const { return flow_.passes_chain(); }
  bool ready() const { return flow_.ready() || delivery_.ready(); }
  // The next operation that has advanced: its sums are done, or a part of its result has been handed out or taken.
  Operation* take_advanced();

  // --- Its end ---

  // On the leader, of one that has ended well: what this rank gets goes from the crossing array into its output.
  void take_own(const Operation& operation);

  // Whether this operation flows or is admitted. Then this rank has to do its part, even if it fails.
  bool flows(const Operation& operation) const {
    return operation.state == Operation::State::flowing || is_admitted(operation.key);
  }
  Operation* moving(std::uint64_t handle) const;
  void forget(std::uint64_t handle) { moving_.erase(handle); }

  // The ranks that others wait for, in the flow and in the delivery of results.
  std::vector<std::uint32_t> late_in_flow() const { return flow_.late(); }
  std::vector<std::uint32_t> late_in_delivery() const { return delivery_.late(); }

  void check_invariants() const;

 private:
  struct Admission {
    Hash128 key;
    std::uint64_t queued;  // Transfer::queued
  };

  bool is_first() const { return own_ == 0; }
  Arrays arrays_of(const Operation& operation);
  Status make_output(Operation& operation, const Blocks& blocks);
  Status make_output(Operation& operation, const std::vector<std::uint64_t>& sizes);
  void go_up(Operation& operation);
  void lay_out(Operation& operation) const;
  void arrange(const Crossing& crossing, const std::byte* from, std::byte* to);
  void begin_crossing(Operation& operation, std::uint64_t queued);
  void send_up_crossing(Operation& operation);
  void add_part(Operation& operation, Range part);

  const GroupMemory& memory_;
  const Members& members_;
  const std::uint32_t own_;
  const bool has_other_nodes_;
  BufferPool& arrays_;
  Outbox& outbox_;
  World& world_;
  Flow flow_;
  Delivery delivery_;
  std::deque<Admission> admitted_;                        // in order, and not flowing yet
  std::unordered_map<std::uint64_t, Operation*> moving_;  // by handle
};

}  // namespace shoal::local
