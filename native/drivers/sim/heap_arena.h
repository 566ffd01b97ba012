// A rank's arrays in the memory that the ranks of a simulated machine share, as drivers/shm/array_allocator.h has them:
// other ranks reach them until they are detached. What others do afterwards, they do to what was there at that moment,
// and the rank does not see it.
//
//   what was detached was given out;   nothing is given out twice
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace shoal::sim {

class HeapArena {
 public:
  HeapArena(std::byte* region, std::size_t bytes) : region_(region), bytes_(bytes) {}
  HeapArena(const HeapArena&) = delete;
  HeapArena& operator=(const HeapArena&) = delete;

  // Null: it is used up.
  std::byte* allocate(std::size_t bytes) {
    const std::size_t rounded = (bytes + grain - 1) / grain * grain;
    if (rounded > bytes_ - given_) {
      return nullptr;
    }
    std::byte* const begin = region_ + given_;
    given_ += rounded;
    return begin;
  }
  // Whether these bytes were given out.
  bool holds(const std::byte* begin, std::uint64_t bytes) const {
    return begin >= region_ && begin + bytes <= region_ + given_;
  }
  void detach(const std::byte* begin, std::uint64_t bytes) { detached_.try_emplace(begin, begin, begin + bytes); }
  // Where other ranks find this byte; null: where the rank itself does.
  std::byte* detached(const std::byte* at) {
    auto found = detached_.upper_bound(at);
    if (found == detached_.begin()) {
      return nullptr;
    }
    --found;
    const auto offset = static_cast<std::size_t>(at - found->first);
    return offset < found->second.size() ? found->second.data() + offset : nullptr;
  }

 private:
  static constexpr std::size_t grain = 64;

  std::byte* const region_;
  const std::size_t bytes_;
  std::size_t given_ = 0;
  std::map<const std::byte*, std::vector<std::byte>> detached_;  // what others find, by the first byte of the array
};

}  // namespace shoal::sim
