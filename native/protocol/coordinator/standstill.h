// Ranks that stand still, what each waits for and what it has called: which of them can never go on? A part of the
// search for circles (circles.h).
//
// It takes as many steps as there are waits, calls that were made of them, and members of their groups, each counted
// once; not a product of any of these.
//
//   After stuck(): who is stuck waits for nothing that all of those left have called who may be is_suspect, and of
//   these are as many left in each group as are stuck.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "protocol/job.h"
#include "wire/waits.h"

namespace shoal {

class Standstill {
 public:
  explicit Standstill(const JobConfig& config);

  // This rank cannot go on before one of these is done. `is_suspect`: others may wait for it, of which is known what it
  // has called: what it waits for, and what note_called says. `waits` live as long as this does. One that has other
  // members than another rank said is believed of nobody: the rank is left out.
  void add(std::uint32_t rank, const std::vector<wire::Wait>& waits, bool is_suspect);
  // After all have been added.
  void note_called(std::uint32_t rank, const wire::Call& call);

  // Those that can never go on, in rising order: each waits only for operations that lack one of them.
  const std::vector<std::uint32_t>& stuck();

  // What they wait for, each once; after stuck().
  std::vector<const wire::Wait*> waited_for() const;
  // For people: who waits for what, and whom it lacks.
  std::string describe() const;

  std::uint64_t steps() const { return steps_; }
  // After stuck().
  void check_invariants() const;

 private:
  struct Rank {
    std::uint32_t rank = 0;
    bool is_suspect = false;
    bool stuck = true;
    std::vector<std::uint32_t> waits;   // calls, by number
    std::vector<std::uint32_t> called;  // likewise
    std::vector<std::uint32_t> groups;  // that it is a member of, by number
  };
  struct Call {
    const wire::Wait* wait = nullptr;
    std::uint32_t group = 0;
    std::uint32_t called = 0;            // by how many of those that are left and may be is_suspect
    std::vector<std::uint32_t> waiting;  // ranks, by place; none any more once they are free
  };
  struct Group {
    const std::vector<wire::Stride>* members = nullptr;
    std::uint32_t left = 0;  // of those that may be is_suspect
    // Its calls by how many have called them, the most on top. Of one whose number has become smaller there is more
    // than one entry, of which the smallest is true.
    std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> calls;
  };

  void find_members();
  void free_complete(std::uint32_t group, std::vector<std::uint32_t>& freed);
  void take_away(const Rank& rank, std::vector<std::uint32_t>& freed);
  bool is_missing(std::uint32_t member, std::uint32_t call) const;
  std::string describe(std::uint32_t call) const;

  const JobConfig& config_;
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> places_;  // by rank of the job: in ranks_, and one more; 0: it was not added
  std::map<wire::Call, std::uint32_t> numbers_;
  std::vector<Call> calls_;
  std::map<Hash128, std::uint32_t> group_numbers_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> stuck_;
  std::uint64_t steps_ = 0;
};

}  // namespace shoal
