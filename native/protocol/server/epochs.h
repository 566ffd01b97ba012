// Which epoch it is at this server and at each worker (docs/protocol/recovery.md).
//
//   said(rank) <= number(). A worker that has never said EPOCH has nothing to open again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "wire/frame.h"

namespace shoal::server {

class Epochs {
 public:
  explicit Epochs(std::uint32_t ranks) : workers_(ranks) {}

  std::uint32_t number() const { return number_; }
  // Whether the worker has said EPOCH for this epoch. Before that it is sent nothing.
  bool is_current(std::uint32_t rank) const { return workers_[rank].said == number_; }
  // Whether the worker has opened again all that was open before its last EPOCH.
  bool has_reopened(std::uint32_t rank) const { return workers_[rank].reopened; }
  // Whether the frame was on its way when this epoch began. Then it is read and thrown away.
  bool is_stale(const wire::Header& header) const;

  // Whether the worker may send the frame now. Of an EPOCH: whether it is the next one.
  Status check(std::uint32_t rank, const wire::Header& header) const;

  void begin(std::uint32_t number) { number_ = number; }
  // The worker has said EPOCH, and then that all has been opened again.
  void hear(std::uint32_t rank, std::uint32_t number) { workers_[rank] = {number, false}; }
  void hear_reopened(std::uint32_t rank) { workers_[rank].reopened = true; }

  void check_invariants() const;

 private:
  struct Worker {
    std::uint32_t said = 0;
    bool reopened = true;
  };

  std::uint32_t number_ = 0;
  std::vector<Worker> workers_;  // by rank
};

}  // namespace shoal::server
