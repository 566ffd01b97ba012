// The actions of a local group, which its driver carries out.
//
// As with every machine (protocol/machine.h) an action may be carried out at once or later, but never calls the group
// back from within the call. Copies and sums are always carried out at once: the group publishes their results when
// they have returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/range.h"
#include "base/status.h"
#include "base/types.h"
#include "protocol/local/chunks.h"
#include "protocol/submission.h"
#include "wire/opening.h"

namespace shoal::local {

// --- Wake-ups ---

class Bells {
 public:
  virtual ~Bells() = default;
  // Wakes this rank of the group: something has happened for which its open operations may wait. `always`: also if it
  // has none.
  virtual void ring(std::uint32_t place, bool always) = 0;
};

// --- Work on memory ---

class Hands {
 public:
  virtual ~Hands() = default;
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
                   Operator op, double divisor) = 0;
};

class World : public Bells, public Hands {
 public:
  // --- The application ---

  // The call has this number (wire::Opening::occurrence). For timelines.
  virtual void numbered(std::uint64_t /*handle*/, std::uint32_t /*occurrence*/) {}
  // The call has been written to the others. For timelines.
  virtual void sending(std::uint64_t handle) = 0;
  // All ranks of the job that are members have called it. For timelines. Of operations that stay on this machine.
  virtual void all_called(std::uint64_t /*handle*/) {}
  virtual void finish(std::uint64_t handle, Status status) = 0;
  // Memory for what a gather brings, by member of the group. Null: there is none.
  virtual std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) = 0;
  virtual void warn(std::string text) = 0;
  // In this group this rank has joined, and another one has called what it has not (protocol/joining.h).
  virtual void called(std::uint32_t group, const wire::Opening& opening) = 0;

  // --- Arrays in the memory that the ranks share (drivers/shm/array_allocator.h) ---

  // Whether these bytes lie in an allocation of this rank's region.
  virtual bool holds(const std::byte* begin, std::uint64_t bytes) const = 0;
  // From now on this process can use another rank's region up to `end`. Throws std::system_error.
  virtual void reach(std::uint32_t place, std::size_t end) = 0;
  // From now on the other ranks cannot reach these bytes. Throws std::system_error.
  virtual void detach(const std::byte* begin, std::uint64_t bytes) = 0;

  // --- The worker of this rank, for operations that go on to other nodes. In the order of these calls. ---

  // All ranks have called the operation with the same arguments. From here on it is the worker's.
  virtual void hand_over(Submission submission) = 0;
  // On the leader: an all-reduce among the nodes. The group hears of it under the same handle:
  // LocalGroup::chunk_averaged for each of these chunks, if there are any, then LocalGroup::averaged.
  virtual void send_up(Submission submission, const std::optional<Chunks>& chunks) = 0;
  virtual void contributed(std::uint64_t handle, Range range) = 0;
  // The operation has failed on this node and ended for this rank: tells the other nodes. It has no handle.
  virtual void open_as_failed(Submission submission) = 0;
  // The group has given up. With other nodes, the job has to end.
  virtual void fail_job(const Status& why) = 0;
  // leave() was called, nothing is open any more, and the others can read that.
  virtual void empty() = 0;
};

}  // namespace shoal::local
