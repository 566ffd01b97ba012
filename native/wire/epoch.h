// What a change of epoch says: EPOCH, the ranges of a resumed ADMIT, HAVE, and RECONNECT and REACHED.
// docs/protocol/format.md, "Other payloads".
//
// Decoding trusts nothing, as in opening.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/range.h"
#include "wire/opening.h"

namespace shoal::wire {

// The coordinator's decision, passed on by every worker to every server in use. Its number is in the header.
struct Epoch {
  std::vector<std::uint32_t> weights;  // by server
  std::string text;                    // why, for people
};
Bytes encode(const Epoch& epoch);
Status decode(ConstBytes payload, Epoch& epoch);
std::size_t epoch_limit(std::size_t servers);

// RECONNECT: which time a lost server is tried, counted from 1 for each server.
struct Attempt {
  std::uint32_t server = 0;  // the index of its first lane
  std::uint32_t number = 0;

  friend bool operator==(const Attempt&, const Attempt&) = default;
};
inline constexpr std::size_t attempt_bytes = 8;
Bytes encode(const Attempt& attempt);
Status decode(ConstBytes payload, Attempt& attempt);

// A server process, as its handshake names it, by whatever address it was reached.
using ServerId = std::array<std::byte, 16>;

// REACHED: what came of an attempt.
struct Reached {
  Attempt attempt;
  ServerId process{};  // zeros where none was reached
};
Bytes encode(const Reached& reached);
Status decode(ConstBytes payload, Reached& reached);

// A range of an operation's buffer that one member has yet to send, or to receive, or both.
struct MissingRange {
  Range range;
  bool sends = false;
  bool receives = false;

  friend bool operator==(const MissingRange&, const MissingRange&) = default;
};
Bytes encode(const std::vector<MissingRange>& missing);
// In ascending order, inside `shard`.
Status decode(ConstBytes payload, Range shard, std::vector<MissingRange>& missing);
std::size_t missing_limit();

// HAVE from a server: a worker's numbers of operations.
inline constexpr std::size_t have_at_once = 64;
Bytes encode_numbers(const std::vector<std::uint64_t>& operations);
Status decode_numbers(ConstBytes payload, std::vector<std::uint64_t>& operations);

}  // namespace shoal::wire
