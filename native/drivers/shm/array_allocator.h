// Allocates memory for a rank's arrays that the other ranks of its node can reach: parts of the rank's region of the
// shared memory.
//
// Promises:
//   * If the machine lacks memory, allocate() fails; no signal comes later. Memory is zero when it is given out.
//     It goes back to the system when nobody uses it any more, whether the job goes on or not.
//   * A child made by fork() has it at the same addresses, and what it writes there is its own. It sees what the parent
//     wrote before the fork, and may see what the parent and its peers write later.
//   * After detach() no other rank writes into an array, however late, unless that stays.
//
// Every method may be called by any thread; in a child made by fork() only the destructor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "drivers/shm/memory.h"

namespace shoal::shm {

class ArrayAllocator : public std::enable_shared_from_this<ArrayAllocator> {
 public:
  ArrayAllocator(std::shared_ptr<const Memory> memory, std::uint32_t rank);
  ArrayAllocator(const ArrayAllocator&) = delete;
  ArrayAllocator& operator=(const ArrayAllocator&) = delete;
  ~ArrayAllocator();

  // Null if this process cannot reach the regions, or if the rank's is used up. `stays`: the same pages lie at these
  // addresses as long as anybody uses them, since a device knows them by their pages. Throws std::system_error if the
  // machine lacks memory.
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool stays = false);

  // Whether all these bytes lie in one allocation.
  bool holds(const std::byte* begin, std::uint64_t bytes) const;
  // From now on the other ranks cannot reach these bytes, which lie in one allocation: what they still write has no
  // effect here. Of memory that stays nobody gets these pages again, which is all that can be. Throws
  // std::system_error.
  void detach(const std::byte* begin, std::uint64_t bytes);

 private:
  friend class Forks;

  // Parts of the region, by their first byte: where they end.
  using Ranges = std::map<std::size_t, std::size_t>;

  struct Taken {
    std::size_t end = 0;
    bool stays = false;
    bool is_lost = false;  // other ranks may write to its pages for ever
  };

  void take(std::size_t begin, std::size_t end) const;
  void give_back(std::size_t begin);
  void map_privately(std::size_t begin, std::size_t end) const;
  void map_in_child() const;

  const std::shared_ptr<const Memory> memory_;
  const std::uint32_t rank_;
  std::byte* const region_;
  const std::uint64_t generation_;
  // A duplicate of the memory's descriptor: in a child it is closed only after everything has been mapped again.
  int descriptor_ = -1;

  mutable std::mutex mutex_;            // held while a process forks
  std::map<std::size_t, Taken> taken_;  // by the first byte; guarded by mutex_
  Ranges detached_;                     // guarded by mutex_
};

}  // namespace shoal::shm
