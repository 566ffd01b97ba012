#include "drivers/sim/arrays.h"

#include <algorithm>

namespace shoal::sim {

namespace {

constexpr std::byte guarded{0xa5};
constexpr std::byte returned{0xee};

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte byte) { return byte == value; });
}

}  // namespace

Array::Array(std::size_t size, std::byte* storage)
    : size_(size),
      own_(storage == nullptr ? storage_bytes(size) : 0),
      storage_(storage == nullptr ? own_.data() : storage, storage_bytes(size)) {
  std::fill(storage_.begin(), storage_.end(), guarded);
}

bool Array::guards_intact() const {
  return all_are(whole().first(guard), guarded) && all_are(whole().last(guard), guarded);
}

void Array::give_back() {
  std::fill(data(), data() + size_, returned);
  given_back_ = true;
}

bool Array::untouched() const { return all_are(whole().subspan(guard, size_), returned); }

Array& Memory::make(std::size_t size, std::byte* storage) {
  auto array = std::make_unique<Array>(size, storage);
  Array& made = *array;
  arrays_.emplace(made.whole().data(), std::move(array));
  return made;
}

Array* Memory::find(const std::byte* address) const {
  auto found = arrays_.upper_bound(address);
  if (found == arrays_.begin()) {
    return nullptr;
  }
  --found;
  const auto whole = found->second->whole();
  return address < whole.data() + whole.size() ? found->second.get() : nullptr;
}

bool Memory::intact() const {
  return std::all_of(arrays_.begin(), arrays_.end(), [](const auto& entry) {
    const Array& array = *entry.second;
    return array.guards_intact() && (!array.given_back() || array.untouched());
  });
}

}  // namespace shoal::sim
