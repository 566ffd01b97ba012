// The layout of the memory that ranks of a machine share: words and a mailbox for each rank, slots for the data of
// large operations, areas in which subgroups have the same (drivers/shm/areas.h), and for each rank a region from which
// it allocates arrays (drivers/shm/array_allocator.h).
//
// Only addresses: a driver provides the memory. Except for the bell, only its own rank writes a word. So there are no
// locks in it, and a process that is killed leaves nothing half done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/local/word.h"

namespace shoal::local {

// The most ranks of a machine that can share memory.
inline constexpr std::uint32_t most_ranks = 64;

// Areas, regions and allocations are multiples of this, which is a multiple of every page size.
inline constexpr std::size_t region_grain = 64 * 1024;

// The sizes, which are the same on every rank.
struct Shape {
  std::uint32_t ranks = 0;
  std::size_t mailbox = 256 * 1024;  // bytes of each rank's
  std::size_t slot = 0;              // bytes of each rank's part of a slot
  std::uint32_t slots = 0;
  std::uint32_t results = 0;  // slots of the same size for what comes back over the network
  // What a rank reduces of a chunk that moves straight from arrays to arrays (straight.h): between two chunks it looks
  // whether the job still goes on. The same where the network waits for the chunk.
  std::size_t share = std::size_t{1024} * 1024;
  std::size_t share_up = std::size_t{128} * 1024;
  std::size_t areas = 0;   // addresses for subgroups, a multiple of region_grain; 0: they have none
  std::size_t region = 0;  // addresses for each rank's arrays, a multiple of region_grain

  // All but the areas and the regions, which come last.
  std::size_t bytes_in_use() const;
  std::size_t bytes_without_regions() const { return bytes_in_use() + areas; }
  std::size_t bytes() const { return bytes_without_regions() + ranks * region; }
  // The most subgroups that can have an area: as many of the smallest size as fit.
  std::size_t groups() const;
};

// For so many ranks, without areas and regions, with at most 16 MiB of slots. `alone`: there are no other nodes.
Shape shape_without_arrays(std::uint32_t ranks, bool alone);

// For a subgroup of so many ranks, in its area: none of its operations goes to other nodes.
Shape shape_for_group(std::uint32_t ranks);

// What each rank says to all others. Words that are written together share a cache line.
struct RankWords {
  // The driver's: rises whenever another rank has done something that this one may wait for. Threads sleep on it.
  alignas(64) std::atomic<std::uint32_t> bell;
  // How many threads of this rank wait for an operation, how many of these sleep, and whether the attendant sleeps.
  std::atomic<std::uint32_t> waiting;
  std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> attendant_asleep;
  // Operations that are open here, and one more while the rank leaves. If there are none, nobody is woken for them.
  std::atomic<std::uint32_t> open;

  // Bytes written into its mailbox since the beginning, and whether a record waits for room.
  alignas(64) Counter written;
  Flag blocked;
  // It reads nothing any more, so nobody waits for it to read.
  Flag gone;
  // Its arrays may be its program's again, although others have not read what they need (delivery.h, flow.h).
  Flag withdrawn;

  // Chunks of large operations since the beginning (flow.h): put into slots, reduced, taken out again.
  alignas(64) Counter contributed;
  Counter reduced;
  Counter collected;
  // Parts of results from the network (delivery.h): handed out by the leader, taken by the others.
  Counter delivered;

  // It reads, or has read, what others say.
  alignas(64) Flag here;
  // It calls nothing more, here or in any group of this machine, and joins no further group. All its calls are in its
  // mailboxes.
  Flag left;

  // Bytes that it has read of each other rank's mailbox.
  alignas(64) Counter read[most_ranks];
};

class GroupMemory {
 public:
  // `begin`: shape.bytes_in_use() bytes, all zero before the leader uses them. `node`, `places`: for a subgroup,
  // the machine's memory and the members' places in it. Null: this is the machine's memory.
  GroupMemory(std::byte* begin, const Shape& shape, const GroupMemory* node = nullptr,
              std::vector<std::uint32_t> places = {})
      : shape_(shape), begin_(begin), node_(node), places_(std::move(places)) {}

  const Shape& shape() const { return shape_; }
  std::uint32_t ranks() const { return shape_.ranks; }

  RankWords& words(std::uint32_t place) const { return reinterpret_cast<RankWords*>(begin_)[place]; }
  std::byte* mailbox(std::uint32_t place) const;
  std::byte* slot(std::uint64_t number, std::uint32_t place) const;
  std::byte* result(std::uint64_t number) const;
  std::byte* region(std::uint32_t place) const;

  // Whether a rank reads nothing any more, or will never begin to.
  bool is_gone(std::uint32_t place) const;
  // Whether this is a subgroup's part of the machine's memory.
  bool is_area() const { return node_ != nullptr; }
  // In an area: whether the machine's memory says that a rank calls nothing any more. It may not know this group.
  bool has_left(std::uint32_t place) const { return is_area() && node_->words(places_[place]).left.load() != 0; }

  // The word of an area, which says whose it is.
  std::atomic<std::uint64_t>& owner(std::size_t number) const;

 protected:
  Shape shape_;
  std::byte* begin_;

 private:
  const GroupMemory* const node_;
  const std::vector<std::uint32_t> places_;
};

}  // namespace shoal::local
