#include "drivers/shm/delivery.h"

#include <algorithm>
#include <cstring>

namespace shoal::shm {

std::uint64_t Delivery::least_taken() const {
  std::uint64_t least = moved_;
  for (std::uint32_t other = 1; other < memory_.shape().ranks; ++other) {
    least = std::min(least, memory_.desk(other).delivered.load());
  }
  return least;
}

bool Delivery::ready() const {
  return !parts_.empty() && (own_ != 0 || moved_ - least_taken() < memory_.shape().results);
}

bool Delivery::step() {
  if (!ready()) {
    return false;
  }
  const Part part = parts_.front();
  parts_.pop_front();
  std::byte* const slot = memory_.result(moved_);
  if (own_ == 0) {
    std::memcpy(slot, part.array + part.range.begin, part.range.size());
  } else {
    std::memcpy(part.array + part.range.begin, slot, part.range.size());
  }
  done_.push_back(part);
  memory_.desk(own_).delivered.store(++moved_);
  if (own_ != 0 && least_taken() == moved_) {
    ring(memory_.desk(0));  // it may wait for the slot
  }
  return true;
}

std::optional<Delivery::Part> Delivery::take_done() {
  if (done_.empty()) {
    return std::nullopt;
  }
  const Part part = done_.front();
  done_.pop_front();
  return part;
}

}  // namespace shoal::shm
