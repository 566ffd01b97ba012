// How the memory that ranks of a machine share is laid out: the words of each rank, a mailbox for each, slots for the
// data of large operations, areas in which groups of some of its ranks have the same for themselves
// (drivers/shm/areas.h), and a region for each rank, from which it takes memory for arrays
// (drivers/shm/array_allocator.h).
//
// Addresses only: where the memory comes from is a driver's matter. Every word is written by its own rank alone, except
// for the bell. So no lock is held in here, and a process that is killed leaves nothing half done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/local/word.h"

namespace shoal::local {

// The most ranks of a machine that can share memory.
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
  std::size_t bytes() const { return bytes_without_regions() + ranks * region; }
  // Groups that can have a part of the areas: as many of the smallest as fit into them.
  std::size_t groups() const;
};

// For so many ranks, without arrays in it: at most 16 MiB of slots. `alone`: there are no other nodes.
Shape shape_without_arrays(std::uint32_t ranks, bool alone);

// For a group of so many ranks of a machine, in its area: nothing of it goes to other nodes.
Shape shape_for_group(std::uint32_t ranks);

// What each rank says to all others, a line of the cache for what is written together.
struct RankWords {
  // The driver's: rises whenever another rank has done something that this one waits for; what is slept on.
  alignas(64) std::atomic<std::uint32_t> bell;
  // Threads of this rank: those that wait for an operation, how many of them sleep, and whether the attendant does.
  std::atomic<std::uint32_t> waiting;
  std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> attendant_asleep;
  // Operations that are open here. Without any, nobody needs to be woken for them.
  std::atomic<std::uint32_t> open;

  // Bytes that have been written into its mailbox since the beginning, and whether it has more than there is room for.
  alignas(64) Counter written;
  Flag blocked;
  // It reads nothing any more: nobody waits for it.
  Flag gone;
  // Its arrays may be its program's again, although others have not copied what they need (delivery.h).
  Flag withdrawn;

  // Chunks of large operations since the beginning (flow.h): put into slots, reduced, taken out again.
  alignas(64) Counter contributed;
  Counter reduced;
  Counter collected;
  // Parts of results from the network (delivery.h): handed out by the first rank, taken by the others.
  Counter delivered;

  // It reads, or has read, what others say.
  alignas(64) Flag here;
  // It calls nothing any more, neither here nor in groups of this machine's ranks: all that it has called is in its
  // mailboxes. Nor will it be in a group where it is not yet.
  Flag left;

  // Bytes that it has read of each other rank's mailbox.
  alignas(64) Counter read[most_ranks];
};

class GroupMemory {
 public:
  // `begin`: shape.bytes_in_use() bytes, all zero before the first rank uses them. `node`, `places`: of a group of some
  // of a machine's ranks, the machine's memory and their places in it; null: this is the machine's.
  GroupMemory(std::byte* begin, const Shape& shape, const GroupMemory* node = nullptr,
              std::vector<std::uint32_t> places = {})
      : shape_(shape), begin_(begin), node_(node), places_(std::move(places)) {}

  const Shape& shape() const { return shape_; }
  std::uint32_t ranks() const { return shape_.ranks; }

  RankWords& words(std::uint32_t rank) const { return reinterpret_cast<RankWords*>(begin_)[rank]; }
  std::byte* mailbox(std::uint32_t rank) const;
  std::byte* slot(std::uint64_t number, std::uint32_t rank) const;
  std::byte* result(std::uint64_t number) const;
  std::byte* region(std::uint32_t rank) const;

  // Whether a rank reads nothing any more, or never will.
  bool is_gone(std::uint32_t rank) const;
  // In an area: whether a rank calls nothing any more, as the machine's memory says. It may know nothing of this group.
  bool has_left(std::uint32_t rank) const { return node_ != nullptr && node_->words(places_[rank]).left.load() != 0; }

  // Whose the areas are, in their order.
  std::atomic<std::uint64_t>& owner(std::size_t number) const;

 protected:
  Shape shape_;
  std::byte* begin_;

 private:
  const GroupMemory* const node_;
  const std::vector<std::uint32_t> places_;
};

}  // namespace shoal::local
