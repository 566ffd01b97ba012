// One operation on a server: what its members have said of it, and how far it has come.
//
// Its life: assembling → flowing (→ closing) → gone, assembling → transferring → gone, or → failed → gone.
//
// How an operation is known:
//   key     the same everywhere: a hash of its group, name and occurrence;
//   number  a worker's own, in the frames of that worker's link;
//   serial  this server's own, never used twice.
// (The application's handle for it never leaves the worker.)
//
//   opened() = members that have opened it; a member that has dropped it has opened it;
//   a state after assembling, other than failed, is reached when every member has opened it, or those that have are
//   complete;
//   inline data is held only while assembling; segments are gathered and summed, and bytes are queued, only while
//   flowing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "protocol/job.h"
#include "protocol/server/groups.h"
#include "protocol/server/queue.h"
#include "protocol/server/segments.h"
#include "wire/opening.h"

namespace shoal::server {

struct Member {
  bool opened = false;
  bool dropped = false;      // it has told us to forget it, or its link is gone
  bool ended = false;        // its handle is done, but it may still send what others lack
  std::uint64_t number = 0;  // the worker's own
  wire::Opening opening;     // without inline data
  Contribution inline_data;  // until the operation is admitted
  bool inlined = false;      // its whole contribution to the operation came with the opening
  std::uint32_t eager = 0;   // bytes of inline data without an answer

  // It has had all of the result, and may leave once nobody can lack it.
  bool has_result() const { return opening.finished || ended; }
};

class Operation {
 public:
  enum class State {
    assembling,    // not all members have opened it
    flowing,       // admitted: segments come and go
    closing,       // at the home, all results sent: waits for the members to be done at the other servers
    transferring,  // at the home: the blocks go from worker to worker
    failed,        // at the home: a tombstone; elsewhere: waits for the members to drop it
  };

  // `is_home`: this server decides whether it fails.
  Operation(std::uint64_t serial, const Hash128& key, const Group& group, bool is_home);

  std::uint64_t serial() const { return serial_; }
  const Hash128& key() const { return key_; }
  const Group& group() const { return group_; }
  bool is_home() const { return is_home_; }
  State state() const { return state_; }
  bool is(State state) const { return state_ == state; }

  // By index in the group.
  const std::vector<Member>& members() const { return members_; }
  const Member& member(std::size_t index) const { return members_[index]; }
  std::size_t size() const { return members_.size(); }
  std::uint32_t rank(std::size_t index) const { return group_.ranks[index]; }
  std::size_t opened() const { return opened_; }
  // The first member, in the group's order, that has opened it; there is one. Its opening.
  std::size_t first() const;
  const wire::Opening& attributes() const { return members_[first()].opening; }
  const std::string& name() const { return attributes().name; }
  bool is_contributor(std::size_t index) const;
  // The part of the result that the member gets.
  Range wanted(std::size_t index) const;
  // Whether the member lacks the result of this segment.
  bool lacks(std::size_t index, std::uint64_t number) const;
  // Whether members have results from an earlier epoch.
  bool has_results() const;

  void open(std::size_t index, std::uint64_t number, wire::Opening opening, Contribution inline_data,
            std::uint32_t eager);
  // The member's handle is done.
  void end(std::size_t index) { members_[index].ended = true; }
  void drop(std::size_t index) { members_[index].dropped = true; }
  Contribution take_inline_data(std::size_t index) { return std::exchange(members_[index].inline_data, {}); }
  void discard_inline_data();
  // The member's inline data is answered. Returns its bytes.
  std::uint32_t take_eager(std::size_t index) { return std::exchange(members_[index].eager, 0); }

  // Openings differ: it cannot be admitted.
  bool has_conflict() const { return has_conflict_; }
  void note_conflict() { has_conflict_ = true; }

  // `place`: in the server's order, until all is answered.
  void flow(Segments segments, Queue::Place place);
  Segments& segments() { return segments_; }
  const Segments& segments() const { return segments_; }
  std::uint64_t queued() const { return place_.bytes(); }
  // Whether data of the member's is waited for.
  bool owes(std::size_t index) const { return is(State::flowing) && segments_.owes(index); }
  void close();
  void transfer() { state_ = State::transferring; }
  // With `why` ok, another server says why.
  void fail(Status why);
  const Status& failure() const { return failure_; }
  // Whether the members hear from here that it has failed, or, unless this is its home, that it has to.
  bool tells_failure() const { return !failure_.ok(); }

  void check_invariants() const;

 private:
  std::uint64_t serial_;
  Hash128 key_;
  const Group& group_;
  bool is_home_;
  State state_ = State::assembling;
  std::vector<Member> members_;
  std::size_t opened_ = 0;
  bool has_conflict_ = false;
  Status failure_;
  Segments segments_;
  Queue::Place place_;
};

}  // namespace shoal::server
