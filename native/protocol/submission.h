// What a call of an operation is, as the application submits it and as machines take it from each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "protocol/machine.h"

namespace shoal {

// One operation as the application submits it. Arrays must stay as they are until the handle is finished.
struct Submission {
  std::uint64_t handle = 0;  // the caller's name for it
  Collective collective = Collective::none;
  std::uint32_t group = 0;                  // from make_group; 0: all ranks
  std::string name;                         // empty: matched by the group's sequence
  std::optional<std::uint32_t> occurrence;  // of the name; none: the next one
  Operator op = Operator::none;
  DType dtype = DType::none;
  std::uint32_t root = 0;            // index in the group
  std::vector<std::int64_t> shape;   // of this rank's array
  std::vector<std::int64_t> splits;  // all-to-all: bytes for each member
  const std::byte* input = nullptr;  // may equal output
  std::size_t input_bytes = 0;
  std::byte* output = nullptr;  // null: the machine asks for memory when the size is known
  std::size_t output_bytes = 0;
  Time timeout = 0;    // without progress; must be above 0
  double divisor = 0;  // what mean divides by, the same on all members; 0: how many they are
  // An all-reduce through servers, in place, of which only that is there which Worker::contributed has named. What has
  // arrived of its result is told to WorkerWorld::received.
  bool streamed = false;
  std::string failure;  // not empty: failed on this rank before it began; only group and name count
  // Not ok: it has failed with this for all members, and `failure` is the whole message, about this rank or none (-1).
  Code failure_code = Code::ok;
  std::int32_t failure_rank = -1;
};

}  // namespace shoal
