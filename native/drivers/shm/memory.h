// The memory that the ranks of a machine share (protocol/local/group_memory.h says how it is laid out): where it comes
// from.
//
//   * It is a memfd: it has no name, so nothing can be left behind, and the size of /dev/shm does not matter.
//   * It is whole before it is used: what the machine cannot give is an error here, and no signal later. It cannot be
//     cut. Areas and regions are addresses only, until something is taken from them.
//   * Children made by fork() do not have it, except for what array_allocator.h says. A core dump does not have it
//   either.
//   * What is only addresses cannot be read: to look at it would make memory of it, up to all that the machine has.
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

// For so many ranks, with areas for groups of some of them, and for each rank addresses for twice its share of the
// memory that the machine has. `alone`: there are no other nodes.
Shape shape_for(std::uint32_t ranks, bool alone);

class Memory final : public local::GroupMemory {
 public:
  // New memory, all zero. Throws std::system_error.
  explicit Memory(const Shape& shape);
  // Memory that another rank made. Throws std::system_error, std::invalid_argument if it has not the right size.
  Memory(os::Descriptor descriptor, const Shape& shape);
  // An area of a machine's memory, which has been taken: so many bytes behind the first. `places`: in the machine's, of
  // the ranks that share it.
  Memory(std::shared_ptr<const Memory> node, std::size_t area, const Shape& shape, std::vector<std::uint32_t> places);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  int descriptor() const { return descriptor_.number(); }

  // The memory for an area: false if there is not so much.
  bool take(std::size_t area, const Shape& shape) const;

  // Whether this process can reach the regions; why not.
  bool has_regions() const { return mapped_ > shape_.bytes_without_regions(); }
  const std::string& why_no_regions() const { return why_no_regions_; }
  // This process may read and write a region up to `end` from here on. Throws std::system_error.
  void open(std::uint32_t rank, std::size_t end) const;
  // Where it is in the file.
  std::size_t file_offset(const std::byte* address) const { return static_cast<std::size_t>(address - begin_); }

 private:
  void map();

  const std::shared_ptr<const Memory> of_node_;  // null: this is it
  os::Descriptor descriptor_;
  std::size_t mapped_ = 0;
  std::string why_no_regions_;
  std::uint64_t generation_ = os::fork_generation();

  // Of each rank's region, what is open in this process: bytes from its beginning.
  mutable std::array<std::atomic<std::size_t>, most_ranks> open_{};
  mutable std::mutex opening_;
};

}  // namespace shoal::shm
