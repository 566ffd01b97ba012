// How many bytes each worker may have in flight to this server, and has.
//
// `window`: the credit of every worker from now on; rank 0's worker changes it, a shared process limits it. `granted`:
// the credit that this worker has, spent or not. `outstanding`: its bytes of DATA without an answer.
//
//   outstanding <= granted + max(the job's segment, small) - segment, eager <= the job's eager limit,
//   window <= wanted; granted falls to window only as less is given back than was spent.
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

  // So many bytes of DATA, and of inline data, have been answered.
  void answer(std::uint32_t rank, std::uint32_t bytes, std::uint32_t eager = 0);
  // How much of the credit that it spent on them the worker gets back: less while it has more than the window.
  std::uint32_t give_back(std::uint32_t rank, std::uint32_t spent);

  // The window from now on.
  void want(std::uint32_t window);
  // From now on no window is larger than this, unless it was so at first. False: nothing changes.
  bool limit(std::uint32_t most);
  // After a change of the window: how much the worker is to be granted now.
  std::uint32_t raise(std::uint32_t rank);

  // Every worker has the whole window again, and nothing outstanding.
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
