#include "protocol/coordinator/inbox.h"

#include <utility>

#include "base/invariant.h"
#include "wire/waits.h"

namespace shoal {

std::byte* Inbox::begin(LinkId link, const wire::Header& header) {
  Frame& frame = frames_[link];
  frame.header = header;
  frame.payload.resize(header.length);
  return frame.payload.data();
}

std::byte* Inbox::begin_counted(LinkId link, const wire::Header& header, bool has_room) {
  if (!has_room) {
    Frame& frame = frames_[link];
    frame.header = header;
    frame.payload = {};
    unread_.resize(wire::circle_bytes);
    return unread_.data();
  }
  std::byte* memory = begin(link, header);
  frames_[link].counted = header.length;
  arriving_ += header.length;
  return memory;
}

std::optional<wire::Bytes> Inbox::take_counted(LinkId link) {
  Frame& frame = frames_.at(link);
  const bool is_read = frame.payload.size() == frame.header.length;
  arriving_ -= std::exchange(frame.counted, 0);
  return is_read ? std::optional(std::exchange(frame.payload, {})) : std::nullopt;
}

void Inbox::drop(LinkId link) {
  Frame& frame = frames_.at(link);
  arriving_ -= std::exchange(frame.counted, 0);
  frame.payload = {};
}

void Inbox::forget(LinkId link) {
  if (const auto found = frames_.find(link); found != frames_.end()) {
    arriving_ -= found->second.counted;
    frames_.erase(found);
  }
}

void Inbox::check_invariants() const {
  std::size_t counted = 0;
  for (const auto& [link, frame] : frames_) {
    counted += frame.counted;
    SHOAL_INVARIANT(frame.counted == 0 || frame.counted == frame.payload.size());
  }
  SHOAL_INVARIANT(counted == arriving_);
}

}  // namespace shoal
