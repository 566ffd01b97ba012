// How a dedicated server's memory is shared among its jobs: docs/decisions/server-memory.md.
//
// A job needs, at each of its servers in this process, what all of its nodes may send at once and a little for tables:
// that is reserved for it when its first node comes, or the job is refused. What is left of the bound is shared evenly:
// as more jobs come, each may have smaller windows and tables, down to what was reserved for it. What a job has in use
// beyond its share stays its own until it gives it back, and the others share what is left. Every method may be called
// by any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "protocol/job.h"

namespace shoal::tcp {

// What one job's server may have, and has: written by the budget and by the server's thread.
struct MemoryShare {
  std::atomic<std::size_t> tables{limits::tables_bytes};
  std::atomic<std::uint32_t> credit{~std::uint32_t{0}};  // of each node, at most
  std::atomic<std::size_t> used{0};
  // It has more than its share. Once it has less than this, what there is is to be divided anew; 0: it has not.
  std::atomic<std::size_t> excess_until{0};
};

class Budget {
 public:
  // `bytes`: for all jobs together. 0: there is no bound.
  explicit Budget(std::size_t bytes) : bytes_(bytes) {}

  // For server `index` of a job; again for one that has it already. Empty if there is room, otherwise what to tell the
  // job.
  std::string reserve(const std::string& incarnation, std::uint32_t index, const JobConfig& config);
  // All of a job's, or one.
  void release(const std::string& incarnation);
  void release(const std::string& incarnation, std::uint32_t index);
  // A job with more than its share has given it back.
  void divide_anew();
  // Never null. Reserves it, whatever else there is, if nothing is.
  std::shared_ptr<MemoryShare> share_of(const std::string& incarnation, std::uint32_t index, const JobConfig& config);

  // What server `index` of such a job needs at least.
  static std::size_t needed(const JobConfig& config, std::uint32_t index);

 private:
  struct Reserved {
    std::size_t bytes = 0;
    std::uint32_t ranks = 0;
    std::uint32_t least_credit = 0;
    std::shared_ptr<MemoryShare> share = std::make_shared<MemoryShare>();
  };
  using Servers = std::map<std::uint32_t, Reserved>;

  // With mutex_ held. The first is null if there is none.
  Reserved* find(const std::string& incarnation, std::uint32_t index);
  Reserved& add(const std::string& incarnation, std::uint32_t index, const JobConfig& config);
  void divide();

  const std::size_t bytes_;
  std::mutex mutex_;
  std::map<std::string, Servers> jobs_;  // guarded by mutex_; by incarnation
};

}  // namespace shoal::tcp
