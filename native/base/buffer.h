// Aligned memory for payloads, reused.
//
// A Buffer owns its bytes and gives them back to its pool when it is destroyed. The pool keeps freed buffers by size
// (powers of two, so that a last, shorter segment can take the memory of a whole one), and sizes repeat, so a running
// job allocates nothing. Not thread-safe: a pool belongs to one machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace shoal {

class BufferPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer gone(std::move(other));
    swap(gone);
    return *this;
  }
  inline ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class BufferPool;
  void swap(Buffer& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  BufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Must outlive its buffers.
class BufferPool {
 public:
  static constexpr std::size_t alignment = 64;

  // Keeps at most `kept_bytes` of freed memory for reuse.
  explicit BufferPool(std::size_t kept_bytes) : kept_limit_(kept_bytes) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  // Uninitialised memory of at least one byte, aligned to `alignment`.
  Buffer take(std::size_t bytes);

  // Bytes of buffers in use, and of freed memory that is kept: for limits and tests.
  std::size_t taken_bytes() const { return taken_; }
  std::size_t kept_bytes() const { return kept_; }

  // From now on freed memory is kept only while it and the buffers in use take at most so many bytes together.
  void keep_within(std::size_t bytes);

 private:
  friend class Buffer;
  void give_back(std::byte* data, std::size_t size);
  // How much may be kept beside so much in use.
  std::size_t most_kept(std::size_t taken) const { return std::min(kept_limit_, limit_ - std::min(limit_, taken)); }
  void keep_at_most(std::size_t bytes);

  const std::size_t kept_limit_;
  std::size_t limit_ = ~std::size_t{0};  // of kept_ + taken_; only kept memory is given up for it
  std::size_t kept_ = 0;
  std::size_t taken_ = 0;
  std::array<std::vector<std::byte*>, 64> free_;  // of 2^i bytes
};

Buffer::~Buffer() {
  if (data_ != nullptr) {
    pool_->give_back(data_, size_);
  }
}

}  // namespace shoal
