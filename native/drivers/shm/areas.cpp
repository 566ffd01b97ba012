#include "drivers/shm/areas.h"

#include <atomic>
#include <cstdint>
#include <cstring>

namespace shoal::shm {

namespace {

// Of an owner's word. The others are the group's.
constexpr std::uint64_t has_memory = 1;

// Never 0. Both halves of the hash go into it: one alone knows little of how the name begins.
std::uint64_t mark_of(const Hash128& id) {
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof id.bytes);
  std::memcpy(halves, id.bytes.data(), sizeof halves);
  const std::uint64_t mark = (halves[0] ^ halves[1]) & ~has_memory;
  return mark != 0 ? mark : has_memory + 1;
}

}  // namespace

std::shared_ptr<const Memory> memory_for_group(const std::shared_ptr<const Memory>& node, const Hash128& id,
                                               const std::vector<std::uint32_t>& places) {
  const Shape shape = shape_for_group(static_cast<std::uint32_t>(places.size()));
  const std::uint64_t mark = mark_of(id);
  const std::uint32_t areas = node->shape().area > 0 ? most_areas : 0;
  for (std::uint32_t area = 0; area < areas; ++area) {
    std::atomic<std::uint64_t>& owner = node->owner(area);
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
  }
  return nullptr;
}

}  // namespace shoal::shm
