// What a rank says to all others of its group, in order: a ring of records that it alone writes and every other rank
// reads.
//
// A record counts once it is whole. If there is no room, the writer keeps it until the slowest reader has read on:
//
//   read by each reader ≤ written ≤ (the least read by a reader that is not gone) + size
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "protocol/local/group_memory.h"
#include "protocol/local/world.h"

namespace shoal::local {

enum class RecordKind : std::uint32_t {
  skip = 0,             // no record: the rest of the ring is too short for the next one
  open = 1,             // the rank has called an operation; the body is an opening of docs/protocol/format.md, Openings
  open_with_data = 2,   // as open; the data is its whole contribution
  open_in_region = 10,  // as open; the data says where the arrays lie in the rank's region (Offsets)
  // From the leader: a large operation that all have opened is the next to flow; the body says how many bytes are
  // before it (Transfer::queued).
  admit = 3,
  leave = 4,   // the rank calls nothing more
  broken = 5,  // the rank can do nothing more in this group; the body is a status
  // From the leader, of an operation that goes over the network:
  part = 6,  // a part of the result is in the next slot for results, or lent (delivery.h); the body is its range
  done = 7,  // it has ended well; the data is the result of a small one; of a small all-gather what the leaders have
             // told each other, and the body how many bytes each node has told
  // From the leader, of any operation: it has failed. The body is a status; the data says whether ranks of other
  // nodes wait for it, and so have to be told (failures.cpp).
  failed = 8,
  // From another rank: the operation has timed out there; the body is a status.
  overdue = 9,
  // From the leader, of an operation that has timed out: no rank begins it until the leader has said `failed`
  // or `go_on` (failures.h).
  fail_pending = 11,
  go_on = 12,
  // From the leader, of an all-gather that goes on to other nodes: the bytes of each member's block are the body, one
  // number if they are alike.
  blocks = 15,
  // From another rank, of such an all-gather: it has memory for all blocks. With a body, a status: why it has not.
  ready = 16,
  // The rank has joined in the group whose id stands in place of a key, or has joined there no more (joined.h).
  join = 13,
  end_join = 14,
};

using ConstBytes = std::span<const std::byte>;

struct Record {
  RecordKind kind = RecordKind::skip;
  Hash128 key;  // of the operation, or a group's id
  ConstBytes body;
  ConstBytes data;
};

// Whether the rank at this place may say such a thing. The order of operations and how they end are the leader's to
// say; what the network says of them, where there is one.
bool may_say(std::uint32_t place, const Record& record, bool has_other_nodes);

class MailboxWriter {
 public:
  MailboxWriter(const GroupMemory& memory, std::uint32_t own, Bells& bells)
      : memory_(memory), own_(own), bells_(bells) {}

  // False: there is no room now, and the readers have been woken.
  bool write(const Record& record);
  // It has ended, and may not have said that it reads nothing any more.
  void forget_reader(std::uint32_t place) { ended_.push_back(place); }

  void check_invariants() const;

 private:
  std::uint64_t slowest_reader() const;

  const GroupMemory& memory_;
  const std::uint32_t own_;
  Bells& bells_;
  std::vector<std::uint32_t> ended_;  // readers
  std::uint64_t written_ = 0;
  bool blocked_ = false;  // as the others see it
};

class MailboxReader {
 public:
  MailboxReader(const GroupMemory& memory, std::uint32_t own, std::uint32_t writer, Bells& bells)
      : memory_(memory), written_(&memory.words(writer).written), own_(own), writer_(writer), bells_(&bells) {}

  // Whether there is another record.
  bool any() const { return !is_damaged_ && written_->load() != read_; }

  // The next record, which stays valid until done(). Throws std::runtime_error for an impossible one, after which there
  // is no other.
  std::optional<Record> next();
  void done();

 private:
  const GroupMemory& memory_;
  const Counter* written_;  // by the writer
  std::uint32_t own_;
  std::uint32_t writer_;
  Bells* bells_;
  std::uint64_t read_ = 0;
  std::uint64_t end_ = 0;  // of the record that next() gave
  bool is_damaged_ = false;
};

}  // namespace shoal::local
