// What a rank has called: how often each name was used in each group, and how much memory the records of its open calls
// take.
//
// Worker and local group check a call here before it becomes an operation. Names, occurrences and the limits on memory
// are a rank's own; no other rank knows of them.
//
//   (names - 1) · name_bytes < tables.names
//   ahead holds numbers above the next one of their name only
//   open = 0 → open_bytes = 0, failed = 0 → failed_bytes = 0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>

#include "base/hash.h"
#include "base/status.h"
#include "protocol/job.h"
#include "protocol/submission.h"
#include "wire/opening.h"
#include "wire/waits.h"

namespace shoal {

// "<what> take all the memory that they may on rank 3 (host), 256 MiB (<limit>): <advice>".
Status limit_reached(const std::string& what, const char* limit, std::size_t allowed, const std::string& advice,
                     std::uint32_t rank, const JobConfig& config);

// How a call of a joined rank ends that it has made already.
Status was_called_before();

class CallRegistry {
 public:
  // What an entry of the table of names takes.
  static constexpr std::size_t name_bytes = 64;

  // `config` must outlive the registry.
  CallRegistry(const JobConfig& config, std::uint32_t rank);

  // Why an operation of this name cannot be called in the group; ok: it can. No other rank hears of the error.
  Status problem_with_name(const Hash128& group, const std::string& name) const;

  // Writes name, occurrence and key into the opening, and counts the call. A call that brings its own number
  // (Submission::occurrence) is not counted. `keys`: of the group whose keys the group's operations have.
  void name_call(wire::Opening& opening, const Hash128& group, const Hash128& keys, const Submission& submission);
  void name_call(wire::Opening& opening, const Hash128& group, const Submission& submission) {
    name_call(opening, group, group, submission);
  }
  // The number of a call that becomes an operation later: it is counted now, and brings its number then.
  void number_call(Submission& submission, const Hash128& group);
  // The call of a rank that has joined, which brings its number: whether it is the first of that number here. It is
  // counted then. It may come before calls of lower numbers: what is called later takes those.
  bool note_told(const Submission& submission, const Hash128& group);
  // Whether this call was made here.
  bool has_called(const wire::Call& call) const;

  // Why the call fails on this rank before it begins, which all members hear; ok: it does not fail. `open`: how many
  // operations are open, for the message. `was_held`: the call was taken before, when there was room.
  Status problem_with(const Submission& submission, std::size_t open, bool was_held = false) const;
  // Whether there is room for one more record of a call that failed so.
  bool has_room_for_failed() const { return failed_bytes_ < config_.tables.open; }

  // Bytes of the records of open calls, and of calls that failed before they began.
  void add(std::size_t record);
  void remove(std::size_t record);
  void add_failed(std::size_t record);
  void remove_failed(std::size_t record);
  std::size_t open() const { return open_; }
  std::size_t failed() const { return failed_; }
  std::size_t open_bytes() const { return open_bytes_; }
  std::size_t failed_bytes() const { return failed_bytes_; }

  void check_invariants() const;

 private:
  std::uint32_t take_number(const Hash128& first);
  void pass_ahead(const Hash128& first, std::uint32_t& next);

  const JobConfig& config_;
  const std::uint32_t rank_;
  std::unordered_map<Hash128, std::uint32_t> occurrences_;      // by key of occurrence 0
  std::unordered_map<Hash128, std::set<std::uint32_t>> ahead_;  // the same: calls of joined ranks that came early
  std::size_t open_ = 0;
  std::size_t open_bytes_ = 0;
  std::size_t failed_ = 0;
  std::size_t failed_bytes_ = 0;
};

}  // namespace shoal
