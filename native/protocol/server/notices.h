// Numbers of operations whose results all members have, until their workers are told (HAVE).
//
// A worker is told with the first frame to it that follows 5 ms later: many numbers in one HAVE, and no packet for it
// alone, which with small arrays would be every third. Where no frame follows, alone, after 20 ms.
//
//   A worker has fewer than have_at_once numbers waiting; if any has some, deadline() is a time. (Between two events.)
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/machine.h"

namespace shoal::server {

class Notices {
 public:
  explicit Notices(std::uint32_t ranks) : workers_(ranks) {}

  // The worker is to be told of this one of its operations. True: the caller tells it now, of all that waits.
  bool add(std::uint32_t rank, std::uint64_t number, bool at_once, Time now);
  // Whether a frame to the worker shall take along what waits.
  bool goes_along(std::uint32_t rank, Time now) const;
  std::vector<std::uint64_t> take(std::uint32_t rank);

  // True: all that waits is to be told now.
  bool on_time(Time now);
  Time deadline() const { return deadline_; }
  void clear();

  void check_invariants() const;

 private:
  struct Worker {
    std::vector<std::uint64_t> numbers;
    Time since = 0;  // when the first of them came
  };

  std::vector<Worker> workers_;  // by rank
  Time deadline_ = never;
};

}  // namespace shoal::server
