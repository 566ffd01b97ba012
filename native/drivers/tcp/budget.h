// How a dedicated server's memory is shared among its jobs: docs/decisions/server-memory.md.
//
// At each of its servers in this process a job needs as much as all of its workers may send at once, and a little for
// tables. That is reserved when its first worker comes, or the job is refused. The rest of the bound is shared evenly.
// As more jobs come, each may have smaller windows and tables, down to what was reserved for it. A job that uses more
// than its share keeps that until it frees it, and the others share what is left. Freed buffers are kept for reuse only
// within the share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/buffer.h"
#include "protocol/job.h"
#include "protocol/server/server.h"

namespace shoal::tcp {

// How much memory one job's server may have, and has. Written by the budget and by the server's thread.
struct MemoryShare {
  std::atomic<std::size_t> bytes{~std::size_t{0}};  // all of it: tables, buffers, and freed ones that are kept
  std::atomic<std::size_t> tables{limits::tables_bytes};
  std::atomic<std::uint32_t> credit{~std::uint32_t{0}};  // of each worker, at most
  std::atomic<std::size_t> used{0};                      // by tables and buffers
  std::atomic<std::size_t> kept{0};                      // by freed buffers
  // Above 0: the job uses more than its share. Once it uses less than this value, shares are divided again.
  std::atomic<std::size_t> excess_until{0};
};

// What one server machine uses of a share. (A server that is reached again has two machines while the links of the old
// one end.) Used by the server's thread; the machine and its pool must outlive it.
class MemoryUse {
 public:
  MemoryUse(std::shared_ptr<MemoryShare> share, Server& machine, BufferPool& pool);
  ~MemoryUse() { note(0, 0); }
  MemoryUse(const MemoryUse&) = delete;
  MemoryUse& operator=(const MemoryUse&) = delete;

  // Limits the machine and its pool to the present share, and notes what they use. Called after every round. Returns
  // whether shares are to be divided again.
  bool keep_to_share();
  // As noted last, with kept buffers.
  std::size_t bytes() const { return used_ + kept_; }

 private:
  void note(std::size_t used, std::size_t kept);

  const std::shared_ptr<MemoryShare> share_;
  Server& machine_;
  BufferPool& pool_;
  std::size_t used_ = 0;
  std::size_t kept_ = 0;
};

// Every method may be called by any thread.
class Budget {
 public:
  // `bytes`: for all jobs together. 0: there is no bound.
  explicit Budget(std::size_t bytes) : bytes_(bytes) {}

  // For server `index` of a job; may be repeated. Returns an empty string if there is room, otherwise what to tell the
  // job.
  std::string reserve(const std::string& incarnation, std::uint32_t index, const JobConfig& config);
  // Releases all servers of a job, or one.
  void release(const std::string& incarnation);
  void release(const std::string& incarnation, std::uint32_t index);
  // A job that used more than its share has freed the excess.
  void divide_anew();
  // Never null. If nothing is reserved, reserves it even beyond the bound.
  std::shared_ptr<MemoryShare> share_of(const std::string& incarnation, std::uint32_t index, const JobConfig& config);

  // What each server of such a job needs at least, whatever its weight: after losses it may have the largest.
  static std::size_t needed(const JobConfig& config);

 private:
  struct Reserved {
    std::size_t bytes = 0;
    std::uint32_t ranks = 0;
    std::uint32_t least_credit = 0;
    std::shared_ptr<MemoryShare> share = std::make_shared<MemoryShare>();
  };
  using Servers = std::map<std::uint32_t, Reserved>;

  // With mutex_ held. find(): null if nothing is reserved.
  Reserved* find(const std::string& incarnation, std::uint32_t index);
  Reserved& add(const std::string& incarnation, std::uint32_t index, const JobConfig& config);
  void divide();

  const std::size_t bytes_;
  std::mutex mutex_;
  std::map<std::string, Servers> jobs_;  // guarded by mutex_; by incarnation
};

}  // namespace shoal::tcp
