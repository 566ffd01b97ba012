#include "protocol/local/group_memory.h"

#include <algorithm>

namespace shoal::local {

namespace {

constexpr std::size_t slot_bytes = 256 * 1024;
constexpr std::uint32_t slot_count = 2;
constexpr std::uint32_t result_count = 4;
constexpr std::size_t staging_bytes = 16 * 1024 * 1024;
constexpr std::size_t page = 4096;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::size_t words_bytes(const Shape& shape) { return rounded_up(shape.ranks * sizeof(RankWords), page); }

// Of the areas' owners.
std::size_t owners_bytes(const Shape& shape) {
  return shape.areas > 0 ? rounded_up(shape.groups() * sizeof(std::uint64_t), page) : 0;
}

}  // namespace

std::size_t Shape::bytes_in_use() const {
  const std::size_t bytes = words_bytes(*this) + ranks * mailbox + (std::size_t{slots} * ranks + results) * slot;
  return rounded_up(bytes + owners_bytes(*this), region_grain);
}

std::size_t Shape::groups() const { return areas / shape_for_group(2).bytes_in_use(); }

Shape shape_without_arrays(std::uint32_t ranks, bool alone) {
  Shape shape;
  shape.ranks = ranks;
  shape.slots = slot_count;
  shape.results = alone ? 0 : result_count;
  shape.slot = std::min(slot_bytes, staging_bytes / (slot_count * ranks + shape.results) / page * page);
  return shape;
}

Shape shape_for_group(std::uint32_t ranks) { return shape_without_arrays(ranks, true); }

std::byte* GroupMemory::mailbox(std::uint32_t place) const {
  return begin_ + words_bytes(shape_) + place * shape_.mailbox;
}

std::byte* GroupMemory::slot(std::uint64_t number, std::uint32_t place) const {
  const std::size_t slots_begin = words_bytes(shape_) + shape_.ranks * shape_.mailbox;
  return begin_ + slots_begin + ((number % shape_.slots) * shape_.ranks + place) * shape_.slot;
}

std::byte* GroupMemory::result(std::uint64_t number) const {
  return slot(0, 0) + (std::size_t{shape_.slots} * shape_.ranks + number % shape_.results) * shape_.slot;
}

std::byte* GroupMemory::region(std::uint32_t place) const {
  return begin_ + shape_.bytes_without_regions() + place * shape_.region;
}

bool GroupMemory::is_gone(std::uint32_t place) const {
  return words(place).gone.load() != 0 || (has_left(place) && words(place).here.load() == 0);
}

std::atomic<std::uint64_t>& GroupMemory::owner(std::size_t number) const {
  std::byte* const owners = begin_ + shape_.bytes_in_use() - owners_bytes(shape_);
  return reinterpret_cast<std::atomic<std::uint64_t>*>(owners)[number];
}

}  // namespace shoal::local
