// The memory of a local group on the heap, and the work on it done at once: all ranks in one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "protocol/local/group_memory.h"
#include "protocol/local/world.h"
#include "reduce/reduce.h"

namespace shoal::sim {

class HeapMemory {
 public:
  explicit HeapMemory(std::size_t bytes) : begin_(static_cast<std::byte*>(::operator new(bytes, alignment))) {
    std::memset(begin_, 0, bytes);
  }
  HeapMemory(const HeapMemory&) = delete;
  HeapMemory& operator=(const HeapMemory&) = delete;
  ~HeapMemory() { ::operator delete(begin_, alignment); }

  std::byte* begin() const { return begin_; }

 private:
  static constexpr std::align_val_t alignment{4096};

  std::byte* const begin_;
};

class HeapGroup : private HeapMemory, public local::GroupMemory {
 public:
  // `node`, `places`: as GroupMemory.
  explicit HeapGroup(const local::Shape& shape, const local::GroupMemory* node = nullptr,
                     std::vector<std::uint32_t> places = {})
      : HeapMemory(shape.bytes()), GroupMemory(begin(), shape, node, std::move(places)) {}
};

// Work on memory, done at once. `Seam`: Hands, or what has them.
template <class Seam>
class PromptWork : public Seam {
 public:
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }
  void sum(std::byte* destination, std::span<const std::byte* const> sources, std::size_t count, DType dtype,
           Operator op, double divisor) override {
    reduce(destination, sources, count, dtype, op, divisor);
  }
};

// Bells count; nobody sleeps.
class PromptHands : public local::Bells, public PromptWork<local::Hands> {
 public:
  explicit PromptHands(const local::GroupMemory& memory) : memory_(memory) {}

  void ring(std::uint32_t rank, bool) override { memory_.words(rank).bell.fetch_add(1); }

 private:
  const local::GroupMemory& memory_;
};

}  // namespace shoal::sim
