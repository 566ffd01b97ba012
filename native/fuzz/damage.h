// Frames that are almost right: a header with one field changed, a payload with some bytes changed, cut off or added.
//
// The check of the header is right afterwards. What only has a wrong check is the wire format's to refuse, and
// wire_fuzz.cpp and link_fuzz.cpp look at that.
#pragma once

#include <array>
#include <cstdint>

#include "fuzz/input.h"
#include "wire/frame.h"
#include "wire/opening.h"

namespace shoal::fuzz {

struct Frame {
  wire::Header header;
  wire::Bytes payload;
};

inline void damage_header(wire::Header& header, Input& input) {
  switch (input.below(9)) {
    case 0:
      header.type = static_cast<wire::Type>(input.byte());
      break;
    case 1:
      header.flags = input.byte();
      break;
    case 2:
      header.dtype = static_cast<DType>(input.byte());
      break;
    case 3:
      header.codec = input.byte();
      break;
    case 4:
      header.epoch = static_cast<std::uint32_t>(input.size());
      break;
    case 5:
      header.operation = input.size();
      break;
    case 6:
      header.offset = input.size();
      break;
    case 7:
      header.credit = static_cast<std::uint32_t>(input.size());
      break;
    default:
      header.acknowledged = static_cast<std::uint32_t>(input.size());
      break;
  }
}

inline void damage_payload(wire::Bytes& payload, Input& input) {
  switch (input.below(4)) {
    case 0:
      payload.erase(payload.begin() + static_cast<std::ptrdiff_t>(input.number(2) % (payload.size() + 1)),
                    payload.end());
      break;
    case 1:
      payload.insert(payload.end(), input.below(256), std::byte{0});
      break;
    case 2: {  // a number in it, as lengths are
      const std::uint64_t value = input.size();
      const std::size_t width = std::array<std::size_t, 4>{1, 2, 4, 8}[input.below(4)];
      const std::size_t at = input.number(2);
      if (at + width <= payload.size()) {
        std::memcpy(payload.data() + at, &value, width);
      }
      break;
    }
    default: {
      const std::vector<std::byte> others = input.bytes(input.below(32));
      const std::size_t at = input.number(2);
      if (at + others.size() <= payload.size()) {
        std::copy(others.begin(), others.end(), payload.begin() + static_cast<std::ptrdiff_t>(at));
      }
      break;
    }
  }
}

// One of the two, or a length that is not the payload's.
inline void damage(Frame& frame, Input& input) {
  const std::size_t way = input.below(8);
  if (way < 4) {
    damage_header(frame.header, input);
  } else {
    damage_payload(frame.payload, input);
  }
  frame.header.length = static_cast<std::uint32_t>(way == 7 ? input.size() : frame.payload.size());
}

// As a receiver reads it: the header's bytes first. Not ok: the wire format refuses it.
inline Status reread(wire::Header& header) {
  std::array<std::byte, wire::header_bytes> bytes{};
  wire::encode(header, bytes);
  return wire::decode(bytes, header);
}

}  // namespace shoal::fuzz
