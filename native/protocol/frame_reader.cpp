#include "protocol/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shoal {

bool FrameReader::consume(std::span<const std::byte> bytes, Receiver& receiver) {
  while (!bytes.empty()) {
    if (payload_missing_ > 0) {
      const std::size_t count = std::min(payload_missing_, bytes.size());
      std::memcpy(payload_, bytes.data(), count);
      bytes = bytes.subspan(count);
      if (!placed(count, receiver)) {
        return false;
      }
      continue;
    }
    const std::size_t count = std::min(header_.size() - header_received_, bytes.size());
    std::memcpy(header_.data() + header_received_, bytes.data(), count);
    header_received_ += count;
    bytes = bytes.subspan(count);
    if (header_received_ == header_.size() && !begin_frame(receiver)) {
      return false;
    }
  }
  return true;
}

bool FrameReader::consume(Buffer& filled, std::size_t count, Receiver& receiver) {
  const bool begins_payload =
      payload_missing_ == filled.size() && buffer_ != nullptr && buffer_->size() == filled.size();
  if (!begins_payload) {
    return consume(std::span(filled.data(), count), receiver);
  }
  std::swap(*buffer_, filled);
  payload_ = buffer_->data();
  return placed(count, receiver);
}

bool FrameReader::placed(std::size_t bytes, Receiver& receiver) {
  payload_ += bytes;
  payload_missing_ -= bytes;
  return bytes == 0 || payload_missing_ > 0 || end_frame(receiver);
}

bool FrameReader::begin_frame(Receiver& receiver) {
  header_received_ = 0;
  wire::Header header;
  if (Status status = wire::decode(header_, header); !status.ok()) {
    return refuse(std::move(status));
  }
  Placement placement = receiver.frame_begins(link_, header);
  if (stopped_) {
    return false;
  }
  if (!placement.status.ok()) {
    return refuse(std::move(placement.status));
  }
  if (header.length == 0) {
    return end_frame(receiver);
  }
  last_length_ = header.length;
  payload_ = placement.memory;
  buffer_ = placement.buffer;
  payload_missing_ = header.length;
  return true;
}

bool FrameReader::end_frame(Receiver& receiver) {
  payload_ = nullptr;
  buffer_ = nullptr;
  Status status = receiver.frame_ends(link_);
  if (stopped_) {
    return false;
  }
  return status.ok() || refuse(std::move(status));
}

bool FrameReader::refuse(Status why) {
  why_ = std::move(why);
  return false;
}

}  // namespace shoal
