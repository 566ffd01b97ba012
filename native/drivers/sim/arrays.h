// The memory of simulated applications: arrays between guards, which are watched. Once its handle is done an array
// belongs to the application again, so it is filled with a pattern at once; nobody may read or write it from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "drivers/sim/network.h"

namespace shoal::sim {

class Array {
 public:
  explicit Array(std::size_t size);

  std::byte* data() { return storage_.data() + guard; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data(), size_}; }
  std::span<const std::byte> whole() const { return storage_; }

  bool guards_intact() const;
  // From here on nothing may touch it.
  void give_back();
  bool given_back() const { return given_back_; }
  bool untouched() const;

 private:
  static constexpr std::size_t guard = 64;

  std::size_t size_;
  bool given_back_ = false;
  std::vector<std::byte> storage_;
};

// All arrays of a run. They live until its end, so that late reads and writes are found.
class Memory {
 public:
  Array& make(std::size_t size);
  // The array that an address belongs to; null: the address is none of an application's.
  const Array* find(const std::byte* address) const;
  // Every guard is whole, and nobody has written to an array that was given back.
  bool intact() const;

 private:
  std::map<const std::byte*, std::unique_ptr<Array>> arrays_;  // by the first byte of the storage
};

}  // namespace shoal::sim
