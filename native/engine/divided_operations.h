// All-reduces that all channels carry out together, each its part: docs/decisions/channels.md.
//
// The first channel opens its part first. Its worker gives the operation its number among the calls of its name, and
// the other channels' parts take that over. So ranks that disagree on the size, and divide an operation differently,
// still agree on the numbers of those that follow.
//
//   an operation is here until its last part has ended; parts that have no number yet were not submitted
//
// Every method may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "protocol/job.h"
#include "protocol/submission.h"

namespace shoal::engine {

class DividedOperations {
 public:
  // `config`: of the whole job.
  explicit DividedOperations(const JobConfig& config);

  // Whether all channels carry it out. Then it becomes the first channel's part.
  bool divide(Submission& submission);
  // The first channel's part has this number. The parts of the others, by channel from the second on, are to be
  // submitted; none if the operation is not divided.
  std::vector<Submission> number(std::uint64_t handle, std::uint32_t occurrence);

  // Whether it is divided and has not ended; and why one of its parts has failed, if one has.
  bool has(std::uint64_t handle);
  Status failure_of(std::uint64_t handle);

  // A part has ended.
  struct Ended {
    bool is_whole = true;   // the operation has ended: all its parts, or it is not divided
    bool is_first = false;  // it is the first that has failed: the other parts are to fail, too
    Status status;          // of the operation, once it has ended
  };
  Ended end(std::uint64_t handle, Status status);

 private:
  struct Divided {
    std::vector<Submission> others;  // not submitted yet
    std::size_t going_on = 1;        // parts that were submitted and have not ended
    Status failure;                  // of the part that failed first
  };

  const std::vector<std::uint32_t> weights_;  // by channel
  const bool divides_;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Divided> divided_;  // by handle; guarded by mutex_
};

}  // namespace shoal::engine
