// The payloads that are not elements: openings, failures, losses, sizes, groups, calls for joined ranks.
// docs/protocol/format.md, Openings and "Other payloads".
//
// Decoding trusts nothing: every length is checked against the payload and against limits.h before it is used, and a
// payload with bytes left over is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/range.h"
#include "base/status.h"
#include "base/types.h"

namespace shoal::wire {

using Bytes = std::vector<std::byte>;
using ConstBytes = std::span<const std::byte>;

// A text as it is sent: at most limits::text_bytes, cut between two characters.
std::string cut(const std::string& text);

// What a worker says of an operation when it opens it.
struct Opening {
  Collective collective = Collective::none;
  Operator op = Operator::none;
  DType dtype = DType::none;
  bool failed = false;  // on this rank, before it began: `text` says why, and the other attributes mean nothing
  std::uint32_t root = 0;
  std::uint32_t occurrence = 0;
  Hash128 key;
  Hash128 group;
  double divisor = 0;  // what mean divides by; 0: the number of members
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> splits;
  std::string name;
  std::string text;
  std::uint32_t inline_bytes = 0;

  // Of an operation that was open in an earlier epoch: docs/protocol/recovery.md, "Opening again".
  bool finished = false;       // its handle is done on this rank, with this status if it failed
  Code code = Code::ok;        // why it failed for all; ok: it did not fail, or only on this rank before it began
  std::int32_t rank = -1;      // which the failure is about
  std::uint64_t exchange = 0;  // the number that its home gave it, 0: none
  std::vector<Range> have;     // the parts of its buffer for which this rank has the answer, ascending

  // What the elements are in frames. `bytes` and all ranges count those: they are the operation's buffer.
  DType wire_dtype() const { return travels_as == DType::none ? dtype : travels_as; }
  void travel_as(DType wire) { travels_as = wire == dtype ? DType::none : wire; }
  DType travels_as = DType::none;  // none: what they are in arrays
};

// Everything but the inline data, which begins where these bytes end (a multiple of 64).
Bytes encode(const Opening& opening);

// Reads an opening; the inline data begins at `inline_offset` of the payload and has opening.inline_bytes bytes.
Status decode(ConstBytes payload, Opening& opening, std::size_t& inline_offset);

// The longest OPEN payload in a job of `size` ranks whose inline data has at most `most_inline` bytes, without `have`.
std::size_t opening_limit(std::size_t size, std::size_t most_inline);

struct Failure {
  Status status;
};
Bytes encode(const Failure& failure);
Status decode(ConstBytes payload, Failure& failure);

struct Loss {
  enum class Kind : std::uint8_t { rank = 1, server = 2 };
  Kind kind = Kind::rank;
  std::uint32_t index = 0;
  Status status;
};
Bytes encode(const Loss& loss);
Status decode(ConstBytes payload, Loss& loss);

struct Sizes {
  std::uint64_t exchange = 0;
  std::vector<std::uint64_t> blocks;
};
Bytes encode(const Sizes& sizes);
Status decode(ConstBytes payload, Sizes& sizes);

struct GroupMembers {
  Hash128 id;
  std::vector<std::uint32_t> ranks;
  bool of_nodes = false;  // each of these ranks sends what all ranks of its node contribute
};
Bytes encode(const GroupMembers& group);
Status decode(ConstBytes payload, GroupMembers& group);

// JOIN: the id of the group in which a rank has joined.
inline constexpr std::size_t join_bytes = 16;
Bytes encode_join(const Hash128& group);
Status decode_join(ConstBytes payload, Hash128& group);

// CALLED: what a member has called, as it said so in its opening, without what is its alone (splits, inline data, what
// it has of the result).
Bytes encode_called(const Opening& opening);
Status decode_called(ConstBytes payload, Opening& opening);
// The longest CALLED.
std::size_t called_limit();

}  // namespace shoal::wire
