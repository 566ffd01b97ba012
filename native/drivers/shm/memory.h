// The memory that the ranks of a node share: a desk and a mailbox for each, slots for the data of large operations,
// areas in which groups of some of its ranks have the same for themselves (areas.h), and a region for each rank, from
// which it takes memory for arrays (arena.h).
//
//   * It is a memfd: it has no name, so nothing can be left behind, and the size of /dev/shm does not matter.
//   * It is whole before it is used: what the machine cannot give is an error here, and no signal later. It cannot be
//     cut. Areas and regions are addresses only, until something is taken from them.
//   * Children made by fork() do not have it, except for what arena.h says. A core dump does not have it either.
//   * What is only addresses cannot be read: to look at it would make memory of it, up to all that the machine has.
//   * Every word of a desk is written by its own rank alone, except for the bell. So no lock is held in here, and a
//     process that is killed leaves nothing half done.
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

namespace shoal::shm {

// The most ranks of a node that can share memory.
inline constexpr std::uint32_t most_ranks = 64;

// Areas, regions, and what is taken from these, are multiples of this: of every page size that there is.
inline constexpr std::size_t region_grain = 64 * 1024;

// What is the same on every rank.
struct Shape {
  std::uint32_t ranks = 0;
  std::size_t mailbox = 256 * 1024;  // bytes of each rank's
  std::size_t slot = 0;              // bytes of each rank's part of a slot
  std::uint32_t slots = 0;
  std::uint32_t results = 0;  // slots of the same size for what comes back over the network
  std::size_t areas = 0;      // addresses for groups of some ranks, a multiple of region_grain; 0: they have none
  std::size_t region = 0;     // addresses for each rank's arrays, a multiple of region_grain

  // All but the areas and the regions, which come last.
  std::size_t bytes_in_use() const;
  std::size_t bytes_without_regions() const { return bytes_in_use() + areas; }
  // Groups that can have a part of that: as many of the smallest as fit into it.
  std::size_t groups() const;
  std::size_t bytes() const { return bytes_without_regions() + ranks * region; }
};

// For so many ranks: at most 16 MiB of slots, and for each rank addresses for twice its share of the memory that the
// machine has. `alone`: there are no other nodes.
Shape shape_for(std::uint32_t ranks, bool alone);

// For a group of so many ranks of a node, in its area: nothing of it goes to other nodes.
Shape shape_for_group(std::uint32_t ranks);

struct Desk {
  // Rises whenever another rank has done something that this one waits for; what is slept on.
  alignas(64) std::atomic<std::uint32_t> bell;
  // Threads of this rank: those that wait for an operation, how many of them sleep, and whether the attendant does.
  std::atomic<std::uint32_t> waiting;
  std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> attendant_asleep;
  // Operations that are open here. Without any, nobody needs to be woken for them.
  std::atomic<std::uint32_t> open;

  // Bytes that have been written into its mailbox since the beginning, and whether it has more than there is room for.
  alignas(64) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> blocked;
  // It reads nothing any more: nobody waits for it.
  std::atomic<std::uint32_t> gone;
  // Its arrays may be its program's again, although others have not copied what they need (delivery.h).
  std::atomic<std::uint32_t> withdrawn;

  // Chunks of large operations since the beginning (flow.h): put into slots, reduced, taken out again.
  alignas(64) std::atomic<std::uint64_t> contributed;
  std::atomic<std::uint64_t> reduced;
  std::atomic<std::uint64_t> collected;
  // Parts of results from the network (delivery.h): handed out by the first rank, taken by the others.
  std::atomic<std::uint64_t> delivered;

  // It reads, or has read, what others say.
  alignas(64) std::atomic<std::uint32_t> here;
  // It calls nothing any more, neither here nor in groups of this node's ranks: all that it has called is in its
  // mailboxes. Nor will it be in a group where it is not yet.
  std::atomic<std::uint32_t> left;

  // Bytes that it has read of each other rank's mailbox.
  alignas(64) std::atomic<std::uint64_t> read[most_ranks];
};

class Memory {
 public:
  // New memory, all zero. Throws std::system_error.
  explicit Memory(const Shape& shape);
  // Memory that another rank made. Throws std::system_error, std::invalid_argument if it has not the right size.
  Memory(os::Descriptor descriptor, const Shape& shape);
  // An area of a node's memory, which has been taken: so many bytes behind the first. `places`: in the node, of the
  // ranks that share it.
  Memory(std::shared_ptr<const Memory> node, std::size_t area, const Shape& shape, std::vector<std::uint32_t> places);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  const Shape& shape() const { return shape_; }
  int descriptor() const { return descriptor_.number(); }

  Desk& desk(std::uint32_t rank) const;
  std::byte* mailbox(std::uint32_t rank) const;
  std::byte* slot(std::uint64_t number, std::uint32_t rank) const;
  std::byte* result(std::uint64_t number) const;

  // Whether a rank reads nothing any more, or never will.
  bool is_gone(std::uint32_t rank) const;
  // In an area: whether a rank calls nothing any more, as the node's memory says. It may know nothing of this group.
  bool has_left(std::uint32_t rank) const;

  // Whose the areas are, in their order (areas.h), and the memory for one: false if there is not so much.
  std::atomic<std::uint64_t>& owner(std::size_t number) const;
  bool take(std::size_t area, const Shape& shape) const;

  // Whether this process can reach the regions; why not.
  bool has_regions() const { return mapped_ > shape_.bytes_without_regions(); }
  const std::string& why_no_regions() const { return why_no_regions_; }
  std::byte* region(std::uint32_t rank) const;
  // This process may read and write a region up to `end` from here on. Throws std::system_error.
  void open(std::uint32_t rank, std::size_t end) const;
  // Where it is in the file.
  std::size_t file_offset(const std::byte* address) const { return static_cast<std::size_t>(address - begin_); }

 private:
  void map();

  Shape shape_;
  const std::shared_ptr<const Memory> node_;  // null: this is it
  const std::vector<std::uint32_t> places_;
  os::Descriptor descriptor_;
  std::byte* begin_ = nullptr;
  std::size_t mapped_ = 0;
  std::string why_no_regions_;
  std::uint64_t generation_ = os::fork_generation();

  // Of each rank's region, what is open in this process: bytes from its beginning.
  mutable std::array<std::atomic<std::size_t>, most_ranks> open_{};
  mutable std::mutex opening_;
};

// Tells a rank that something which its open operations may wait for has happened. Wakes whoever works there, if that
// sleeps. `always`: also if it has no operations.
void ring(Desk& desk, bool always = false);

// Tells all but this one.
void ring_others(const Memory& memory, std::uint32_t rank);

}  // namespace shoal::shm
