#include "base/buffer.h"

#include <bit>
#include <new>

namespace shoal {

namespace {

std::byte* allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(BufferPool::alignment)));
}

void release(std::byte* data) { ::operator delete(data, std::align_val_t(BufferPool::alignment)); }

std::size_t rounded(std::size_t bytes) { return std::bit_ceil(std::max(bytes, BufferPool::alignment)); }

std::size_t exponent(std::size_t size) { return static_cast<std::size_t>(std::countr_zero(size)); }

}  // namespace

BufferPool::~BufferPool() {
  for (const std::vector<std::byte*>& list : free_) {
    for (std::byte* data : list) {
      release(data);
    }
  }
}

Buffer BufferPool::take(std::size_t bytes) {
  Buffer buffer;
  buffer.pool_ = this;
  buffer.size_ = bytes;
  const std::size_t size = rounded(bytes);
  auto& list = free_[exponent(size)];
  if (list.empty()) {
    keep_at_most(most_kept(taken_ + size));
    buffer.data_ = allocate(size);
  } else {
    buffer.data_ = list.back();
    list.pop_back();
    kept_ -= size;
  }
  taken_ += size;
  return buffer;
}

void BufferPool::give_back(std::byte* data, std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  taken_ -= size;
  if (kept_ + size > most_kept(taken_)) {
    release(data);
    return;
  }
  free_[exponent(size)].push_back(data);
  kept_ += size;
}

void BufferPool::keep_within(std::size_t bytes) {
  limit_ = bytes;
  keep_at_most(most_kept(taken_));
}

// The largest go first: what is needed again and again is small.
void BufferPool::keep_at_most(std::size_t bytes) {
  for (std::size_t i = free_.size(); i-- > 0 && kept_ > bytes;) {
    for (std::vector<std::byte*>& list = free_[i]; kept_ > bytes && !list.empty(); kept_ -= std::size_t{1} << i) {
      release(list.back());
      list.pop_back();
    }
  }
}

}  // namespace shoal
