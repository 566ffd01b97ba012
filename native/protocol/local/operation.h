// One operation among the ranks of a machine, as one of them knows it. It lives until all ranks have called it and it
// is over on this rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "protocol/collectives.h"
#include "protocol/local/calls.h"
#include "protocol/local/internode.h"
#include "protocol/local/internode_state.h"
#include "protocol/progress.h"
#include "protocol/submission.h"
#include "wire/opening.h"

namespace shoal::local {

struct Group {
  std::uint32_t number = 0;  // in this rank's worker
  Hash128 id;
  std::vector<std::uint32_t> here;     // places of the members in the local group, in the group's order
  std::vector<std::uint32_t> indices;  // of the same in the group
  std::optional<Internode> internode;

  // With other nodes: the node of these members.
  std::uint32_t own_node() const { return internode->nodes[indices.front()]; }
};

// When an operation moved last, and when that is reported as late.
class Lateness {
 public:
  void note_moved(Time now) { moved_ = std::max(moved_, now); }
  Time moved() const { return moved_; }
  // Whether it is late, without progress since `since`. If so, it is late again only after twice as long.
  bool is_late(Time since, Time now) {
    const bool late = since + late_after_ <= now;
    late_after_ *= late ? 2 : 1;
    return late;
  }
  Time late_after() const { return late_after_; }

 private:
  Time moved_ = 0;
  Time late_after_ = first_late;
};

struct Operation {
  enum class State {
    assembling,  // not all ranks are known to have called it
    complete,    // all have; waits for the leader's word
    at_network,  // a small one, which the leader has sent up
    flowing,     // a large one, whose chunks move
    over,        // finished here, handed over, or failed
  };

  Operation(const Hash128& its_key, std::uint32_t ranks) : key(its_key), calls(ranks) {}

  const Hash128 key;
  State state = State::assembling;
  Calls calls;

  // This rank's own call.
  bool called = false;
  std::size_t record = 0;  // bytes of its record, which count while it is open here
  const Group* group = nullptr;
  Submission submission;
  wire::Opening opening;
  wire::Bytes body;  // the same, encoded
  bool inlined = false;
  std::uint64_t written_in = 0;  // the round in which it was written

  InternodeState internode_state;
  // Of a reduce-scatter or an all-gather that goes up.
  std::vector<std::uint64_t> block_sizes;  // of an all-gather, by member, once the leader has said them
  std::uint64_t ready = 0;                 // of the same, on the leader: a bit for each place that has memory for them
  std::optional<Crossing> crossing;        // once it is known
  std::vector<Range> early_parts;          // on the leader of an all-gather: of the result, to be handed out later
  Buffer arranged;   // this rank's contribution to a reduce-scatter, if it has to be arranged anew
  Buffer array;      // on the leader: the crossing array, if that is not the output
  wire::Bytes told;  // on the leader of an all-gather: what it tells the other leaders first
  Lateness lateness;
  bool overdue = false;       // it has timed out here, and the leader has been told
  bool fail_pending = false;  // the leader has announced that it may fail

  bool is_open() const { return called && state != State::over; }
  bool assembling() const { return state == State::assembling; }
  // The opening of a rank of this group, if any has called: this rank's own if it has.
  std::optional<wire::Opening> any_opening() const;
  // With other nodes: whether, as far as is known here, the operation is carried out in this group and goes up to the
  // network (`goes_up`), or is left to the workers (not `goes_up`). Before all ranks have called, both may be.
  bool may_be(bool goes_up) const;
  // On the leader, of one with a crossing: the crossing array, and the result in it. Of any other: its output.
  std::byte* crossing_array() const { return array ? array.data() : submission.output; }
  std::byte* result() const { return crossing_array() + (crossing ? crossing->result.begin : 0); }
  std::uint64_t result_bytes() const { return crossing ? crossing->result.size() : submission.output_bytes; }
  void release_arrays();
  // Whether this rank contributes. `own`: its place.
  bool contributes(std::uint32_t own) const;

  void check_invariants() const;
};

// Bytes of an operation's record, without its arrays. limits::open_bytes limits their sum.
std::size_t record_bytes(const Submission& submission, std::size_t ranks);

}  // namespace shoal::local
