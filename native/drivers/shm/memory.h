// Where the memory comes from that the ranks of a machine share. protocol/local/group_memory.h has its layout.
//
//   * It is a memfd: it has no name, so nothing can be left behind, and the size of /dev/shm does not matter.
//   * All of it is reserved before it is used: if the machine lacks memory, that is an error here, and no signal
//     later. It cannot be truncated. Areas and regions are only addresses until something is taken from them.
//   * Core dumps do not have it. Children made by fork() do not either, except for what array_allocator.h says.
//   * What is only addresses cannot be read: reading would allocate pages, up to all the memory of the machine.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "os/descriptor.h"
#include "protocol/local/group_memory.h"

namespace shoal::shm {

using local::most_ranks;
using local::RankWords;
using local::region_grain;
using local::Shape;
using local::shape_for_group;

// For so many ranks, with areas for subgroups, and with regions of twice a rank's share of the machine's memory, in
// addresses. `alone`: there are no other nodes.
Shape shape_for(std::uint32_t ranks, bool alone);

class Memory final : public local::GroupMemory {
 public:
  // New memory, all zero. Throws std::system_error.
  explicit Memory(const Shape& shape);
  // Memory that another rank made. Throws std::system_error, or std::invalid_argument if its size is wrong.
  Memory(os::Descriptor descriptor, const Shape& shape);
  // An area of a machine's memory that has been taken. `area`: its offset from the first area. `places`: of its ranks
  // in the machine's memory.
  Memory(std::shared_ptr<const Memory> node, std::size_t area, const Shape& shape, std::vector<std::uint32_t> places);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  int descriptor() const { return descriptor_.number(); }

  // Reserves the memory of an area. False: there is not enough.
  bool take(std::size_t area, const Shape& shape) const;

  // Whether this process can reach the regions; if not, why.
  bool has_regions() const { return mapped_ > shape_.bytes_without_regions(); }
  const std::string& why_no_regions() const { return why_no_regions_; }
  // From now on this process may read and write a region up to `end`. Throws std::system_error.
  void open(std::uint32_t rank, std::size_t end) const;
  // The address's offset in the file.
  std::size_t file_offset(const std::byte* address) const { return static_cast<std::size_t>(address - begin_); }

 private:
  void map();

  const std::shared_ptr<const Memory> of_node_;  // the machine's memory; null: this is it
  os::Descriptor descriptor_;
  std::size_t mapped_ = 0;
  std::string why_no_regions_;
  std::uint64_t generation_ = os::fork_generation();

  // Of each rank's region, what is open in this process: bytes from its beginning.
  mutable std::array<std::atomic<std::size_t>, most_ranks> open_{};
  mutable std::mutex opening_;
};

}  // namespace shoal::shm
