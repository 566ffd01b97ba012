// What a server knows: workers, groups, operations and their segments. Private to the server's machine.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
#include "protocol/collectives.h"
#include "protocol/job.h"
#include "protocol/machine.h"
#include "protocol/sharding.h"
#include "wire/epoch.h"
#include "wire/opening.h"

namespace shoal::server {

struct Group {
  std::vector<std::uint32_t> ranks;

  std::optional<std::size_t> index_of(std::uint32_t rank) const;
};

// One member's part of a segment, in memory of ours.
struct Contribution {
  Buffer buffer;
  const std::byte* data = nullptr;  // inside buffer
  std::uint32_t credit = 0;         // bytes of credit it was sent under; 0 for inline data
};

struct Segment {
  Range range;
  std::vector<Contribution> contributions;  // by member
  std::size_t arrived = 0;
};

struct Member {
  bool opened = false;
  bool dropped = false;      // it has told us to forget it, or its link is gone
  bool ended = false;        // its handle is done, and it may yet send what others lack
  std::uint64_t number = 0;  // the worker's own number of the operation
  wire::Opening opening;     // without inline data
  Contribution inline_data;  // until the operation is admitted
  bool inlined = false;      // its whole contribution to the operation came with the opening
  std::uint32_t eager = 0;   // bytes of inline data that it has no answer to
  std::uint64_t next = 0;    // the number of the segment that its next DATA must be
};

// What is missing of a shard where some members have results from an epoch before: one segment of it.
struct Piece {
  Range range;
  std::optional<std::size_t> source;  // the member that has the result; none: nobody has, so it is a sum as ever
  bool needs_data = true;             // not if all have their bytes of it, and some only do not know that it is over
  std::vector<bool> receives;         // by member: it has no answer
};

// Who knows what of the results of an operation. Outlives it until all members have theirs.
struct Receipt {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> members;  // rank and its number
  bool urgent = false;                                           // somebody's handle waits for it
  bool by_segment = false;                                       // members keep results until all have them
  bool ended = false;                                            // there are no more results
  std::uint64_t unacknowledged = 0;                              // results
  std::deque<std::uint32_t> missing;                             // by segment, from `settled` on: who does not have it
  std::uint64_t settled = 0;                                     // segments that all have
};

// An operation's life: gathering → flowing (→ closing) → gone, gathering → exchanging → gone, or → failed → gone.
struct Operation {
  enum class State {
    gathering,   // not all members have opened it
    flowing,     // admitted: segments come and go
    closing,     // at the home, all results sent: waits for the members to be done at the other servers
    exchanging,  // at the home: the blocks go from worker to worker
    failed,      // at the home: a tombstone; elsewhere: waits for the members to drop it
  };

  std::uint64_t serial = 0;  // never used twice
  std::size_t record = 0;    // bytes that it counts for in the server's tables
  std::size_t reserved = 0;  // of these, for the opening of each member
  Hash128 key;
  const Group* group = nullptr;
  bool home = false;
  State state = State::gathering;
  std::vector<Member> members;  // by index in the group
  std::size_t opened = 0;
  bool conflict = false;  // openings differ
  Status failure;         // why, once failed; ok: others say why

  Time next_alarm = never;  // the end of the wait for those who have not opened a conflict

  // Of the bytes that this server averages.
  Range shard;
  std::uint32_t segment = 0;                 // bytes
  std::map<std::uint64_t, Segment> filling;  // by number of the segment
  std::map<std::uint64_t, Segment> summed;   // done, but one before them is not
  std::uint64_t next_result = 0;
  std::uint64_t segments = 0;
  bool resumed = false;                    // some members have results: only `pieces` are missing
  std::vector<Piece> pieces;               // then the segments, by number
  std::vector<std::uint64_t> settled_for;  // then, by member: of its results, those that all have

  const wire::Opening& attributes() const;  // of the first member that opened
  const std::string& name() const { return attributes().name; }
  // Whether the members hear from here that it has failed.
  bool tells_failure() const { return home && !failure.ok(); }
  bool is_contributor(std::size_t member) const;
  std::size_t contributors(std::uint64_t number) const;
  // Whether the member's DATA is a part of this segment; the first from `number` on that it sends.
  bool contributes(std::size_t member, std::uint64_t number) const;
  std::uint64_t next_of(std::size_t member, std::uint64_t number) const;
  // Whether it is sent this segment's result, with or without bytes; and whether it lacks them.
  bool is_answered(std::size_t member, std::uint64_t number) const;
  bool lacks(std::size_t member, std::uint64_t number) const;
  Range segment_range(std::uint64_t number) const;
  // What the member gets of the result.
  Range wanted(std::size_t member) const;
};

// What an operation takes of a server's memory beside its data, and what one opening of it adds.
std::size_t record_bytes(const Group& group);
std::size_t record_bytes(const wire::Opening& opening);

// The frames that carry one result and the memory behind them.
struct Outgoing {
  Buffer buffer;
  std::size_t unsent = 0;

  // Broadcast: what the root hears when all have been written, segment after segment.
  bool answers_root = false;
  std::uint32_t root = 0;
  wire::Header answer;
  std::uint64_t serial = 0;
  std::uint64_t segment = 0;
};

// A RESULT or SIZES on its way to a worker.
struct Unacknowledged {
  std::uint32_t count = 0;  // as the worker will acknowledge it
  std::uint64_t serial = 0;
  std::uint64_t segment = 0;
};

struct WorkerState {
  std::optional<LinkId> link;
  bool told_to_compete = false;  // at any time
  std::uint32_t epoch = 0;       // as its last EPOCH said
  bool reopened = true;          // and it has opened again what was open before
  std::deque<Unacknowledged> unacknowledged;
  std::vector<std::uint64_t> settled;  // numbers that it is to be told of
  Time settled_since = 0;              // when the first of them came
  bool left = false;
  Time heard = 0;  // when its last frame came
  Collective last_opened = Collective::none;
  std::string last_name;
  std::size_t unwritten = 0;  // frames with a token that the driver has and the network has not
  // Why operations that it has not opened cannot be finished any more; ok: it may yet open them.
  Code absence = Code::ok;
  bool lost = false;
  std::unordered_map<std::uint64_t, std::uint64_t> operations;  // its number → serial
  std::uint64_t outstanding = 0;                                // bytes of DATA without an answer
  std::uint32_t credit = 0;                                     // what it has of it in all, spent or not
  std::uint64_t eager = 0;                                      // bytes of inline data without an answer
  std::uint32_t results_sent = 0;                               // modulo 2^32
  std::uint32_t acknowledged = 0;

  // Broadcasts from it, by its number: the segments that it has no answer to, in order. (A link that breaks ends the
  // frames on it in any order.)
  std::unordered_map<std::uint64_t, std::deque<Token>> broadcasting;

  // The frame that is being received.
  wire::Header header;
  Buffer payload;
};

// The text of a Mismatch: what every member sent, and who has not called yet.
std::string mismatch_text(const Operation& operation, const JobConfig& config);

// Members that have not opened the operation, as ranks.
std::vector<std::uint32_t> missing(const Operation& operation);

}  // namespace shoal::server
