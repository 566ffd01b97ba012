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
  // `storage`: storage_bytes(size) of memory that outlives the array's use; null: its own.
  Array(std::size_t size, std::byte* storage);
  static std::size_t storage_bytes(std::size_t size) { return size + 2 * guard; }

  std::byte* data() { return storage_.data() + guard; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data(), size_}; }
  std::span<const std::byte> whole() const { return storage_; }

  bool guards_intact() const;
  // From now on nothing may touch the array.
  void give_back();
  bool given_back() const { return given_back_; }
  bool untouched() const;
  // Another rank has read or written it.
  void note_reached() { reached_ = true; }
  bool reached() const { return reached_; }

 private:
  static constexpr std::size_t guard = 64;

  std::size_t size_;
  bool given_back_ = false;
  bool reached_ = false;
  std::vector<std::byte> own_;  // empty: it lies elsewhere
  std::span<std::byte> storage_;
};

// All arrays of a run. They live until its end, so that late reads and writes are found.
class Memory {
 public:
  // `storage`: as Array.
  Array& make(std::size_t size, std::byte* storage);
  // The array that an address belongs to; null: the address is none of an application's.
  Array* find(const std::byte* address) const;
  // Every guard is whole, and nobody has written to an array that was given back.
  bool intact() const;

 private:
  std::map<const std::byte*, std::unique_ptr<Array>> arrays_;  // by the first byte of the storage
};

}  // namespace shoal::sim
