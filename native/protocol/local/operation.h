// One operation among the ranks of a machine, as one of them knows it. Lives until all ranks have called it and it is
// over here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "protocol/collectives.h"
#include "protocol/local/averaging.h"
#include "protocol/local/calls.h"
#include "protocol/local/internode.h"
#include "protocol/progress.h"
#include "protocol/submission.h"
#include "wire/opening.h"

namespace shoal::local {

struct Group {
  std::uint32_t number = 0;  // in this rank's worker
  Hash128 id;
  std::vector<std::uint32_t> here;  // all members of the local group by their places in it, in the group's order
  std::optional<Internode> internode;
};

// Since when an operation has not moved, and when somebody is told.
class Lateness {
 public:
  void note_moved(Time now) { moved_ = std::max(moved_, now); }
  Time moved() const { return moved_; }
  // Whether it is late, without progress since `since`; then it is late again after twice as long.
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
    gathering,   // not all have called it, as far as is known here
    complete,    // all have; the first rank's word is waited for
    at_network,  // a small one, which the first rank has sent up
    flowing,
    over,  // finished here, handed over, or failed
  };

  Operation(const Hash128& its_key, std::uint32_t ranks) : key(its_key), calls(ranks) {}

  const Hash128 key;
  State state = State::gathering;
  Calls calls;

  // This rank's own call.
  bool called = false;
  std::size_t record = 0;  // bytes that it counts for while it is open here
  const Group* group = nullptr;
  Submission submission;
  wire::Opening opening;
  wire::Bytes body;  // the same, encoded
  bool inlined = false;
  std::uint64_t written_in = 0;  // the round in which it was written

  Averaging averaging;
  Lateness lateness;
  bool overdue = false;       // which the first rank has been told
  bool fail_pending = false;  // the first rank is about to say whether it fails

  bool is_open() const { return called && state != State::over; }
  bool gathers() const { return state == State::gathering; }
  // What a rank of this group has called, if any has: this one's if it has.
  std::optional<wire::Opening> any_opening() const;
  // Whether, as far as is known, it is one that is carried out here and goes up (`goes_up`), or one that is left to the
  // workers: what ranks of this group have called is, or none has said what it is. Where there are other nodes.
  bool may_be(bool goes_up) const;
  // Whether this rank's input counts. `own`: its place.
  bool contributes(std::uint32_t own) const;

  void check_invariants() const;
};

// What an operation takes of a rank's memory, without its arrays: what limits::open_bytes limits.
std::size_t record_bytes(const Submission& submission, std::size_t ranks);

}  // namespace shoal::local
