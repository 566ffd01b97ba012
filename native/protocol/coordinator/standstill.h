// Given ranks that stand still, what each waits for and what it has called: which of them can never go on? A part of
// the search for circles (circles.h).
//
// A suspect is a rank of which all calls are known, so that a call that is missing from it is known to be missing.
//
// Time is linear in the waits, the calls that were made of them, and the members of their groups.
//
//   After stuck(): every call that a stuck rank waits for is missing from at least one remaining suspect. `left` counts
//   a group's remaining suspects.
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

  // This rank cannot go on before one of `waits` is done, which must outlive this. `is_suspect`: it is known what it
  // has called: what it waits for, and what note_called() says. A rank that names other members of a group than an
  // earlier one did is left out.
  void add(std::uint32_t rank, const std::vector<wire::Wait>& waits, bool is_suspect);
  // After all have been added.
  void note_called(std::uint32_t rank, const wire::Call& call);

  // The ranks that can never go on, in rising order: each waits only for operations that lack the call of one of them.
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
    std::vector<std::uint32_t> groups;  // its groups, by number
  };
  struct Call {
    const wire::Wait* wait = nullptr;
    std::uint32_t group = 0;
    std::uint32_t called = 0;            // by how many remaining suspects
    std::vector<std::uint32_t> waiting;  // ranks, by place; empty once they are free
  };
  struct Group {
    const std::vector<wire::Stride>* members = nullptr;
    std::uint32_t left = 0;  // remaining suspects
    // Its calls by how many have called them, the most on top. A call whose count has fallen has several entries, of
    // which the smallest is true.
    std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> calls;
  };

  void find_members();
  void free_complete(std::uint32_t group, std::vector<std::uint32_t>& freed);
  void take_away(const Rank& rank, std::vector<std::uint32_t>& freed);
  bool is_missing(std::uint32_t member, std::uint32_t call) const;
  std::string describe(std::uint32_t call) const;

  const JobConfig& config_;
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> places_;  // by rank of the job: 1 + its index in ranks_; 0: it was not added
  std::map<wire::Call, std::uint32_t> numbers_;
  std::vector<Call> calls_;
  std::map<Hash128, std::uint32_t> group_numbers_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> stuck_;
  std::uint64_t steps_ = 0;
};

}  // namespace shoal
