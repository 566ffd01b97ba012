// What a rank says to all others of its node, in order: a ring of records that it alone writes and every other one
// reads.
//
// A record counts once it is whole. One that finds no room waits with its writer until the slowest reader has gone on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/hash.h"
#include "drivers/shm/memory.h"

namespace shoal::shm {

enum class Kind : std::uint32_t {
  skip = 0,            // nothing: the rest of the ring is too short
  open = 1,            // the rank has called an operation; the body is an opening of docs/protocol.md, section 6
  open_with_data = 2,  // and here is its whole contribution
  admit = 3,           // from the first rank: a large operation that all have opened is the next to flow
  leave = 4,           // the rank calls nothing more
  broken = 5,          // the rank can do nothing more in here; the body is a status
  // From the first rank, of an operation that goes over the network:
  part = 6,  // a part of the result is in the next slot for results, or lent (delivery.h); the body is its range
  done = 7,  // it has ended well; the data is the result of a small one
  // From the first rank, of any: it has failed; the body is a status.
  failed = 8,
  // From another rank: the operation's time is out there; the body is a status.
  overdue = 9,
  open_in_arena = 10,  // as open; the data says where the arrays lie in the rank's region (arena.h)
  // From the first rank, of an operation whose time is out (room_stalls.cpp): nobody begins with it until the first
  // rank has said that it has failed, or that it goes on.
  withhold = 11,
  go_on = 12,
};

using ConstBytes = std::span<const std::byte>;

struct Record {
  Kind kind = Kind::skip;
  Hash128 key;  // of the operation
  ConstBytes body;
  ConstBytes data;
};

class MailboxWriter {
 public:
  MailboxWriter(const Memory& memory, std::uint32_t own) : memory_(memory), own_(own) {}

  // False: there is no room now.
  bool write(const Record& record);

 private:
  std::uint64_t slowest_reader() const;

  const Memory& memory_;
  std::uint32_t own_;
  std::uint64_t written_ = 0;
};

class MailboxReader {
 public:
  MailboxReader(const Memory& memory, std::uint32_t own, std::uint32_t writer)
      : memory_(memory), own_(own), writer_(writer) {}

  // The next record, which stays where it is until done(). Throws std::runtime_error for what cannot be one.
  std::optional<Record> next();
  void done();

 private:
  const Memory& memory_;
  std::uint32_t own_;
  std::uint32_t writer_;
  std::uint64_t read_ = 0;
  std::uint64_t end_ = 0;  // of the record that next() gave
};

}  // namespace shoal::shm
