#include "base/buffer.h"

#include <new>

namespace shoal {

namespace {

std::byte* allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(BufferPool::alignment)));
}

void release(std::byte* data) { ::operator delete(data, std::align_val_t(BufferPool::alignment)); }

// Sizes are rounded up so that a last, shorter segment can reuse the memory of a whole one.
std::size_t rounded(std::size_t bytes) {
  std::size_t size = 64;
  while (size < bytes) {
    size *= 2;
  }
  return size;
}

}  // namespace

Buffer::~Buffer() {
  if (data_ != nullptr) {
    pool_->give_back(data_, size_);
  }
}

BufferPool::~BufferPool() {
  for (auto& [size, list] : free_) {
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
  auto& list = free_[size];
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
  free_[size].push_back(data);
  kept_ += size;
}

void BufferPool::keep_within(std::size_t bytes) {
  limit_ = bytes;
  keep_at_most(most_kept(taken_));
}

// The largest go first: what is needed again and again is small.
void BufferPool::keep_at_most(std::size_t bytes) {
  for (auto place = free_.rbegin(); place != free_.rend() && kept_ > bytes; ++place) {
    auto& [size, list] = *place;
    for (; kept_ > bytes && !list.empty(); kept_ -= size) {
      release(list.back());
      list.pop_back();
    }
  }
}

}  // namespace shoal
