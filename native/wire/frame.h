// Frame headers: docs/protocol/format.md, Frames and "Frame types", and nothing more.
//
// decode() checks all that the 40 bytes alone can tell. Machines check what depends on the state of a link or an
// operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "base/types.h"

namespace shoal::wire {

inline constexpr std::size_t header_bytes = 40;
using HeaderBytes = std::span<std::byte, header_bytes>;
using ConstHeaderBytes = std::span<const std::byte, header_bytes>;

enum class Type : std::uint8_t {
  open = 1,
  data = 2,
  result = 3,
  admit = 4,
  grant = 5,
  fail = 6,
  drop = 7,
  sizes = 8,
  late = 9,
  group = 10,
  leave = 11,
  report = 12,
  lost = 13,
  ended = 14,
  abort = 15,
  epoch = 16,
  have = 17,
  window = 18,
  ask = 19,
  reconnect = 20,
  reached = 21,
  waits = 22,
  probe = 23,
  calls = 24,
  circle = 25,
  join = 26,
  called = 27,
  gone = 28,
};

// What flag 1 means, in this order: of RESULT, the operation's last from this server; of SIZES, one RESULT with
// everything follows; of ADMIT, the missing ranges follow; of DROP, the operation has ended well; of EPOCH, all
// operations of earlier epochs have been opened again; of WINDOW, links compete; of REACHED, the server was not
// reached; of JOIN, the rank is joined no more.
inline constexpr std::uint8_t flag_last = 1;
inline constexpr std::uint8_t flag_inline = 1;
inline constexpr std::uint8_t flag_resumed = 1;
inline constexpr std::uint8_t flag_well = 1;
inline constexpr std::uint8_t flag_reopened = 1;
inline constexpr std::uint8_t flag_competing = 1;
inline constexpr std::uint8_t flag_unreachable = 1;
inline constexpr std::uint8_t flag_over = 1;

// Flag 2 of ADMIT: of an operation that is short, but goes in full segments.
inline constexpr std::uint8_t flag_full = 2;

// Payloads of DATA and RESULT, and what comes with an OPEN, may be compressed. 0: not at all.
inline constexpr std::uint8_t last_codec = 0;

struct Header {
  Type type{};
  std::uint8_t flags = 0;
  DType dtype = DType::none;
  std::uint8_t codec = 0;
  std::uint32_t epoch = 0;
  std::uint64_t operation = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::uint32_t credit = 0;
  std::uint32_t acknowledged = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

// Writes the header with its check.
void encode(const Header& header, HeaderBytes bytes);

// Reads and checks a header: the CRC, a known type, codec, dtype and flags. The status names the field that is wrong.
Status decode(ConstHeaderBytes bytes, Header& header);

// The same of a codec alone, which openings say too.
Status check_codec(std::uint8_t codec);

// "DATA", "RESULT" and so on, for messages.
const char* name_of(Type type);

}  // namespace shoal::wire
