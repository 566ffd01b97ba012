// What a worker knows: groups, operations, links. Private to the worker's machine.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "protocol/machine.h"
#include "protocol/progress.h"
#include "protocol/sharding.h"
#include "protocol/worker/worker.h"
#include "wire/epoch.h"
#include "wire/late.h"

namespace shoal::worker {

struct Group {
  Hash128 id;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint32_t> needed;  // whose loss ends it: the members, and those that they speak for
  std::size_t own = 0;                // this rank's index
  bool too_many = false;              // there was no room for it; its members are not known

  std::optional<std::size_t> index_of(std::uint32_t rank) const;
  bool needs(std::uint32_t rank) const;
};

// A result that others may yet lack, as it came (docs/decisions/server-loss.md).
struct Kept {
  Range range;
  Buffer buffer;
};

// How far a part is: what is below `offset` in runs[run] is behind it.
struct Cursor {
  std::size_t run = 0;
  std::uint64_t offset = 0;

  friend auto operator<=>(const Cursor&, const Cursor&) = default;
};

// What one server does for an operation: its whole shard, or what is missing of it after a server was lost. Runs are
// cut into segments from their begin; segments are sent and answered in ascending order, so answered ≤ sent for those
// who send.
struct Part {
  std::uint32_t server = 0;
  Range shard;
  std::uint32_t segment = 0;  // bytes
  std::vector<wire::Run> runs;
  Cursor sent;
  Cursor answered;
  std::uint32_t eager = 0;         // bytes of inline data without an answer
  std::uint64_t unanswered = 0;    // bytes of DATA without an answer
  bool is_reference = false;       // its server does
  bool follows_reference = false;  // with those that lead
  std::uint32_t stagger = 0;       // bytes that it may be ahead of them
  bool admitted = false;
  bool resumed = false;        // the server has said what is missing
  bool done = false;           // every result is here
  bool settled = false;        // and every other member has what it gets
  std::vector<Kept> kept;      // results that others may lack, in order
  std::uint32_t released = 0;  // of what was kept, since the part was opened: results

  Part() = default;
  Part(Part&&) noexcept = default;
  Part& operator=(Part&&) noexcept = default;

  // From a cursor on, where the next bytes are that this rank sends, or that are answered to it.
  Cursor next_to_send() const;
  Cursor next_to_answer() const;
  // The segment there, empty at the end.
  Range segment_at(const Cursor& cursor) const;
  bool all_sent() const { return segment_at(next_to_send()).empty(); }
  std::uint64_t segments_sent() const;
  std::uint64_t bytes_sent() const { return next_to_send().offset - shard.begin; }  // with what is skipped
};

// A block of an all-gather or all-to-all that goes to or comes from one member.
//   moved ≤ granted ≤ range.size()
struct Block {
  Range range;  // in the input or the output
  std::uint64_t granted = 0;
  std::uint64_t moved = 0;

  bool done() const { return moved == range.size(); }
};

struct Exchange {
  std::uint64_t id = 0;
  std::vector<Block> incoming;  // by member
  std::vector<Block> outgoing;
  bool sizes_known = false;
  bool through_home = false;  // a RESULT with everything follows

  bool done() const;
};

// An all-reduce on its way round the ring: ring.cpp.
struct Ring {
  struct Stream {
    std::vector<Range> chunks;  // one a step
    std::uint64_t bytes = 0;    // of all of them
    std::size_t step = 0;       // where the next byte belongs
    std::uint64_t offset = 0;   // in chunks[step]
    std::uint64_t moved = 0;    // bytes of the stream

    Range next(std::uint64_t segment) const;
    void advance(std::uint64_t count);
    void skip_empty();
  };
  // Received; being added, or done and waiting for one before it.
  struct Piece {
    std::uint64_t bytes = 0;
    bool done = false;
    Buffer buffer;
    Token token = 0;
  };

  Ring(std::uint64_t bytes, std::size_t members, std::size_t own);
  bool done() const;

  Stream outgoing;
  Stream incoming;
  std::size_t reduce_steps = 0;  // the steps before the all-gather
  std::uint64_t may_send = 0;
  std::uint64_t granted = 0;
  std::uint64_t processed = 0;
  std::deque<Piece> pieces;
};

// Questions to servers about operations that do not move, and the answers until now.
struct Inquiry {
  Time until = never;                                                                    // never: nothing is asked
  std::set<std::uint64_t> operations;                                                    // numbers
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::optional<wire::Late>> answers;  // by number and server
  std::size_t unanswered = 0;
};

struct Operation {
  std::uint64_t number = 0;
  Submission submission;
  Group* group = nullptr;
  wire::Opening opening;  // as it was sent, to be sent again
  const std::string& name() const { return opening.name; }
  std::uint32_t home = 0;
  bool failed_here = false;  // opened as failed: the handle is done, the home's FAIL ends the rest
  bool finished = false;     // the handle is done, but another member may lack its result: not among the open ones
  Status failure;            // why it failed, as the home said it or is told
  bool reopened = false;     // an exchange, or an all-reduce of the ring, that was open in an epoch before
  RangeSet have;             // answered in epochs before
  RangeSet contributed;      // of one in parts: what is there to be sent
  std::vector<Kept> kept;    // results of epochs before
  std::size_t record = 0;    // bytes that it counts for while it is open
  Buffer own_input;          // a copy of what a small one contributed, once its result is here
  std::vector<Part> parts;   // in ascending order of servers
  bool follows_reference = false;  // some of the parts do
  std::uint64_t bytes = 0;         // of the operation's buffer
  Range wanted;                    // of the result
  Exchange exchange;               // what goes from worker to worker
  bool sending = false;            // the application has heard that it is
  bool controlled = false;         // its bytes count for the pace of the job
  std::optional<Ring> ring;        // once it has begun
  std::optional<Status> ending;    // it has failed, and ends when no sum uses its arrays any more
  std::size_t unsent = 0;          // its frames with borrowed bytes that the driver has and the network has not

  Time progress = 0;
  Time check_at = never;
  Time still_since = 0;          // its last progress when that was looked at
  Time late_after = first_late;  // without progress, until the servers are asked whom it waits for; doubles
  bool timing_out = false;       // they are being asked for the last time
  bool timed_out = false;        // the home has been asked to fail it
  std::string stall;             // since when it has not moved, and why, as far as was known

  bool gathers() const;
  bool contributes() const;
  // Whether these bytes of its contribution may be sent.
  bool has(Range segment) const { return !submission.streamed || contributed.contains(segment); }
  // Whether the others need this rank's arrays until they have what they get: the handle is done only then.
  bool waits_for_others(const JobConfig& config) const;
  // Whether its results are the same on all members, so that one can help another out.
  bool shares_results(const JobConfig& config) const;
  Part& part_of(std::uint32_t server);
  // Segments that every server has been sent, of those that are owed more.
  std::uint64_t least_sent() const;
  // The fraction of its shard that every reference server has been sent, of those that are owed more and for
  // which more is there.
  double step() const;
  bool in_step(const Part& part) const;
  bool done(const JobConfig& config) const;
};

// What an operation that so many servers work on takes of a worker's memory, without its arrays: what
// limits::open_bytes limits.
std::size_t record_bytes(const Submission& submission, std::size_t servers);

struct ServerLink {
  std::optional<LinkId> link;
  JobConfig::Window window;
  std::int64_t credit = 0;       // bytes that may be sent; below 0 after a small operation that is larger
  std::int64_t most_credit = 0;  // that it can ever be
  bool is_reference = false;     // JobConfig::is_reference, JobConfig::follows_reference
  bool follows_reference = false;
  std::uint64_t eager = 0;             // bytes of inline data without an answer
  std::uint64_t unanswered = 0;        // bytes of DATA of operations that go on, without an answer
  std::deque<std::uint64_t> admitted;  // numbers in the server's order; ended ones are passed over
  std::uint32_t results = 0;           // RESULT and SIZES frames received in this epoch, modulo 2^32
  std::uint32_t acknowledged = 0;      // of these, as the server knows
  Time unknown_since = 0;              // when the first came that it does not know of
  std::vector<std::uint64_t> ended;    // numbers of those that have ended well here, which it has not been told
  Time ended_since = 0;                // when the first did
  Time last_result = 0;
  std::uint64_t exchange_heard = 0;             // the highest exchange in a SIZES from it
  std::unordered_set<std::uint32_t> announced;  // groups
  std::uint32_t attempt = 0;                    // at reaching it again, until the coordinator knows what came of it
};

struct PeerLink {
  std::optional<LinkId> link;
  bool connecting = false;
};

// A link as the driver knows it, and the frame that is being received on it.
struct LinkState {
  enum class Kind { server, coordinator, peer };
  Kind kind = Kind::server;
  std::uint32_t index = 0;
  wire::Header header;
  Buffer payload;
};

}  // namespace shoal::worker
