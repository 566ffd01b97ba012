#include "drivers/shm/areas.h"

#include <atomic>
#include <cstdint>
#include <cstring>

namespace shoal::shm {

namespace {

// Of an owner's word: whether there is memory, and one less than the ranks. The other bits are the group's.
constexpr std::uint64_t has_memory = 1;
constexpr std::uint64_t rank_unit = 2;
constexpr std::uint64_t own_bits = rank_unit * most_ranks - 1;

// Never 0, since a group has 2 ranks at least. Both halves of the hash go into it: one alone knows little of how the
// name begins.
std::uint64_t mark_of(const Hash128& id, std::size_t ranks) {
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof id.bytes);
  std::memcpy(halves, id.bytes.data(), sizeof halves);
  return ((halves[0] ^ halves[1]) & ~own_bits) | (ranks - 1) * rank_unit;
}

std::size_t bytes_of(std::uint64_t owner) {
  const auto ranks = static_cast<std::uint32_t>((owner & own_bits) / rank_unit + 1);
  return (owner & has_memory) != 0 ? shape_for_group(ranks).bytes_in_use() : 0;
}

}  // namespace

std::shared_ptr<const Memory> memory_for_group(const std::shared_ptr<const Memory>& node, const Hash128& id,
                                               const std::vector<std::uint32_t>& places) {
  const Shape shape = shape_for_group(static_cast<std::uint32_t>(places.size()));
  const std::uint64_t mark = mark_of(id, places.size());
  const std::size_t groups = node->shape().groups();
  std::size_t area = 0;
  for (std::size_t number = 0; number < groups; ++number) {
    std::atomic<std::uint64_t>& owner = node->owner(number);
    std::uint64_t found = owner.load();
    if (found == 0) {
      const std::uint64_t own = mark | (node->take(area, shape) ? has_memory : 0);
      if (owner.compare_exchange_strong(found, own)) {
        found = own;
      }
    }
    if ((found & ~has_memory) == mark) {
      return (found & has_memory) != 0 ? std::make_shared<const Memory>(node, area, shape, places) : nullptr;
    }
    area += bytes_of(found);
  }
  return nullptr;
}

}  // namespace shoal::shm
