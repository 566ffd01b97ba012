// How many bytes of shards stand in this server's order: admitted, and not yet answered, failed or forgotten.
//
//   bytes() is the sum of all places that are taken.
#pragma once

#include <cstdint>
#include <utility>

namespace shoal::server {

class Queue {
 public:
  // One operation's, until it goes.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : queue_(std::exchange(other.queue_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(queue_, other.queue_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Place() {
      if (queue_ != nullptr) {
        queue_->bytes_ -= bytes_;
      }
    }

    std::uint64_t bytes() const { return bytes_; }

   private:
    friend class Queue;
    Place(Queue& queue, std::uint64_t bytes) : queue_(&queue), bytes_(bytes) { queue.bytes_ += bytes; }

    Queue* queue_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  Queue() = default;
  Queue(const Queue&) = delete;  // places know where it is
  Queue& operator=(const Queue&) = delete;

  Place enter(std::uint64_t bytes) { return {*this, bytes}; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

}  // namespace shoal::server
