// How an operation, a link or a job ends: a code, the rank it is about, and a message for a person.
//
// Errors are values here; Python turns them into exceptions (src/shoal/errors.py). The numbers are those on the wire
// (docs/protocol/format.md, Numbers).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace shoal {

enum class Code : std::uint8_t {
  ok = 0,
  mismatch = 1,
  peer_lost = 2,
  timeout = 3,
  peer_left = 4,
  limit = 5,
  protocol = 6,
  failed_on_rank = 7,
  aborted = 8,
  cancelled = 9,
};

struct Status {
  Code code = Code::ok;
  std::int32_t rank = -1;  // the rank that this is about, -1: none in particular
  std::string message;

  bool ok() const { return code == Code::ok; }

  static Status error(Code code, std::string message, std::int32_t rank = -1) {
    return Status{code, rank, std::move(message)};
  }
};

// The error for what violates the protocol.
inline Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace shoal
