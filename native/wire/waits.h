// What ranks wait for, and which of it others have called: WAITS, PROBE, CALLS and CIRCLE.
// docs/protocol/format.md, "Other payloads".
//
// Decoding trusts nothing, as in opening.h.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/opening.h"

namespace shoal::wire {

// One operation: of a group, a name in it, and how often that name was called before.
struct Call {
  Hash128 group;
  std::uint32_t occurrence = 0;
  std::string name;

  friend auto operator<=>(const Call&, const Call&) = default;
};

// `count` ranks of the job: `first`, and from there one every `step`. Most large groups are one stride or a few, and so
// take little room.
struct Stride {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t step = 1;

  std::uint32_t last() const { return first + (count - 1) * step; }
  bool has(std::uint32_t rank) const { return rank >= first && rank <= last() && (rank - first) % step == 0; }
  friend bool operator==(const Stride&, const Stride&) = default;
};

// In rising order; each rank is in one stride.
std::vector<Stride> strides_of(std::vector<std::uint32_t> ranks);
std::vector<std::uint32_t> ranks_of(const std::vector<Stride>& strides);

struct Wait {
  Call call;
  Collective collective = Collective::none;
  std::vector<Stride> members;
};

// WAITS: nothing on this rank can call anything before one of these operations is done.
struct Waits {
  std::uint64_t changes = 0;  // how often something happened that might have made that untrue
  std::vector<Wait> waits;
};

// PROBE: which of these have you called?
struct Probe {
  std::uint32_t round = 0;
  std::vector<Call> calls;
};

// CALLS: the answer to a PROBE.
struct Calls {
  std::uint32_t round = 0;
  std::uint64_t changes = 0;  // as in Waits; 0: something here can call
  std::vector<bool> called;   // as the probe has them
};

// CIRCLE: these can never be complete.
struct Circle {
  std::vector<Call> calls;
  std::string why;
};

// The longest of these payloads. A longer one is not sent.
inline constexpr std::size_t circle_bytes = 1024 * 1024;

Bytes encode(const Waits& waits);
Bytes encode(const Probe& probe);
Bytes encode(const Calls& calls);
Bytes encode(const Circle& circle);
Status decode(ConstBytes payload, Waits& waits);
Status decode(ConstBytes payload, Probe& probe);
Status decode(ConstBytes payload, Calls& calls);
Status decode(ConstBytes payload, Circle& circle);

}  // namespace shoal::wire
