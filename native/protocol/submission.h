// A call of an operation, as the application submits it and as local group and worker hand it on.
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

// One operation as the application submits it. Its arrays must stay valid and unchanged until the handle is finished.
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
  double divisor = 0;  // what mean divides by, the same on all members; 0: the number of members
  // Of an all-reduce through servers, in place, a reduce-scatter, or an all-gather whose input is this rank's part of
  // the output. Of its contribution only what Worker::contributed has named is there, and WorkerWorld::received hears
  // of each part of its result that comes from others.
  bool streamed = false;
  // Of a part of an all-reduce that several channels carry out: where its arrays begin in the whole. The shape is that
  // of the whole, and contributed() and received() name ranges of the whole. None: it is no part.
  std::optional<std::uint64_t> offset;
  // Its input is still on its way (gates.h): the call counts now, and the operation is opened when input_ready() has
  // been called for its handle.
  bool awaits_input = false;
  // Of a rank that has joined, which was told that another one has called this (joining.h). It brings its number, and
  // counts if this rank has not called it yet; otherwise its handle ends as cancelled, and nobody hears of it.
  bool told = false;
  std::string failure;  // not empty: failed on this rank before it began; only group and name count
  // If not ok, all members see this code and `failure` as the whole message; `failure_rank` is the culprit, or -1.
  Code failure_code = Code::ok;
  std::int32_t failure_rank = -1;
};

}  // namespace shoal
