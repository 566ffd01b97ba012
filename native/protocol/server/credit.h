// What each worker may have on its way to this server, and has: the books of the window.
//
// With `window` the credit of a worker from now on (rank 0's worker changes it, a shared process limits it), `granted`
// what this worker has of it, spent or not, and `outstanding` its bytes of DATA without an answer:
//
//   outstanding <= granted + max(the job's segment, small) - segment, eager <= the job's eager limit,
//   window <= wanted, and granted falls to window only by what is given back.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/server/terms.h"

namespace shoal::server {

class Credit {
 public:
  explicit Credit(const Terms& terms);

  // Whether the worker's window has room for DATA of so many bytes.
  bool covers(std::uint32_t rank, std::uint32_t bytes) const;
  std::uint32_t granted(std::uint32_t rank) const { return workers_[rank].granted; }
  void spend(std::uint32_t rank, std::uint32_t bytes) { workers_[rank].outstanding += bytes; }
  // Whether so many bytes of inline data are within the eager limit.
  bool covers_eager(std::uint32_t rank, std::uint32_t bytes) const;
  void spend_eager(std::uint32_t rank, std::uint32_t bytes) { workers_[rank].eager += bytes; }

  // So many bytes of DATA and of inline data have their answer.
  void answer(std::uint32_t rank, std::uint32_t bytes, std::uint32_t eager = 0);
  // What of the credit that it spent on them the worker gets back: less while it has more than the window.
  std::uint32_t give_back(std::uint32_t rank, std::uint32_t spent);

  // The window from now on. raise() says what a worker is to be granted then.
  void want(std::uint32_t window);
  // No window is larger than this, but none is smaller than at first for it. False: nothing changes.
  bool limit(std::uint32_t most);
  std::uint32_t raise(std::uint32_t rank);

  // Workers begin anew: all of the window, nothing outstanding.
  void begin_epoch();

  std::uint64_t outstanding(std::uint32_t rank) const { return workers_[rank].outstanding; }
  std::uint64_t eager(std::uint32_t rank) const { return workers_[rank].eager; }
  void check_invariants() const;

 private:
  struct Worker {
    std::uint64_t outstanding = 0;
    std::uint32_t granted = 0;
    std::uint64_t eager = 0;  // bytes of inline data without an answer
  };

  const Terms& terms_;
  std::uint32_t window_;
  std::uint32_t wanted_;
  std::uint32_t most_ = ~std::uint32_t{0};
  std::vector<Worker> workers_;  // by rank
};

}  // namespace shoal::server
