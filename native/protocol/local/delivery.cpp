#include "protocol/local/delivery.h"

#include <algorithm>

#include "base/invariant.h"

namespace shoal::local {

namespace {

std::optional<Delivery::ResultPart> first_of(std::deque<Delivery::ResultPart>& parts) {
  if (parts.empty()) {
    return std::nullopt;
  }
  const Delivery::ResultPart part = parts.front();
  parts.pop_front();
  return part;
}

}  // namespace

std::uint64_t Delivery::least_taken() const {
  std::uint64_t least = moved_;
  for (std::uint32_t other = 1; other < memory_.ranks(); ++other) {
    least = std::min(least, memory_.words(other).delivered.load());
  }
  return least;
}

void Delivery::add(const ResultPart& part) {
  parts_.push_back(part);
  lend();
}

std::size_t Delivery::drop(std::uint64_t handle) {
  const std::size_t dropped = std::erase_if(parts_, [handle](const ResultPart& part) { return part.handle == handle; });
  lend();
  return dropped;
}

// There is nothing to be done for them but to say so.
void Delivery::lend() {
  while (own_ == 0 && !parts_.empty() && parts_.front().lent != nullptr) {
    const ResultPart part = *first_of(parts_);
    note_moved(part);
    lent_.push_back({part, moved_});
  }
}

void Delivery::note_moved(const ResultPart& part) {
  done_.push_back(part);
  memory_.words(own_).delivered.store(++moved_);
}

bool Delivery::ready() const {
  return !parts_.empty() && (own_ != 0 || moved_ - least_taken() < memory_.shape().results);
}

bool Delivery::step() {
  if (!ready()) {
    return false;
  }
  const ResultPart part = *first_of(parts_);
  if (own_ == 0) {
    hands_.copy(memory_.result(moved_), part.array + part.range.begin, part.range.size());
    note_moved(part);
    lend();
    return true;
  }
  const std::byte* const from = part.lent != nullptr ? part.lent + part.range.begin : memory_.result(moved_);
  if (part.takes != nullptr) {
    take(*part.takes, part.range, from, part.array, hands_);
  } else {
    hands_.copy(part.array + part.range.begin, from, part.range.size());
  }
  note_moved(part);
  if (part.lent != nullptr && memory_.words(0).withdrawn.load() != 0) {
    done_.pop_back();  // who knows what that was
  }
  if (least_taken() == moved_) {
    bells_.ring(0, false);  // it may wait for the slot, or for its array
  }
  return true;
}

std::optional<Delivery::ResultPart> Delivery::take_done() { return first_of(done_); }

std::optional<Delivery::ResultPart> Delivery::take_returned() {
  if (lent_.empty() || least_taken() < lent_.front().end) {
    return std::nullopt;
  }
  const ResultPart part = lent_.front().part;
  lent_.pop_front();
  return part;
}

std::vector<std::uint32_t> Delivery::late() const {
  const std::uint64_t least = least_taken();
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t other = 1; other < memory_.ranks(); ++other) {
    if (memory_.words(other).delivered.load() <= least) {
      ranks.push_back(other);
    }
  }
  return ranks;
}

void Delivery::check_invariants() const {
  SHOAL_INVARIANT(memory_.words(own_).delivered.load() == moved_);
  SHOAL_INVARIANT(lent_.empty() || (own_ == 0 && lent_.back().end <= moved_));
  if (own_ == 0 && lent_.empty()) {
    SHOAL_INVARIANT(moved_ - least_taken() <= memory_.shape().results || memory_.shape().results == 0);
  }
}

}  // namespace shoal::local
