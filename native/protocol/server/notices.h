// Operations whose results all members have, until their workers are told so (HAVE).
//
// A HAVE goes along with the first frame to the worker after 5 ms, with all numbers that wait by then. Alone, HAVEs
// would be every third packet with small arrays. If no frame follows, a HAVE is sent alone after 20 ms.
//
//   A worker has fewer than have_at_once numbers waiting. While any has some, deadline() is a time. (Between two
//   events.)
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/machine.h"

namespace shoal::server {

class Notices {
 public:
  explicit Notices(std::uint32_t ranks) : workers_(ranks) {}

  // The worker is to be told of its operation with this number. True: the caller sends all that waits now.
  bool add(std::uint32_t rank, std::uint64_t number, bool at_once, Time now);
  // Whether a HAVE is to go along with a frame to the worker.
  bool goes_along(std::uint32_t rank, Time now) const;
  std::vector<std::uint64_t> take(std::uint32_t rank);

  // True: all workers are to be told now.
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
