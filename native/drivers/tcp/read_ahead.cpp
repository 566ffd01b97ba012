#include "drivers/tcp/read_ahead.h"

#include <sys/uio.h>

#include <algorithm>

namespace shoal::tcp {

namespace {

// Smaller payloads are copied: that costs less than a buffer for each.
constexpr std::size_t smallest_payload = 2048;

}  // namespace

std::span<iovec> ReadAhead::prepare(std::span<iovec> vectors, std::size_t length, Receiver& receiver) {
  const std::size_t frame = wire::header_bytes + length;
  std::size_t rest = frame <= capacity ? capacity : wire::header_bytes;
  std::size_t count = 0;
  for (frames_ = 0; length >= smallest_payload && frames_ < most_frames && frame <= rest; ++frames_) {
    Buffer& payload = payloads_[frames_];
    if (payload.size() != length) {
      payload = receiver.spare(length);
    }
    if (!payload) {
      break;
    }
    vectors[count++] = {headers_[frames_].data(), wire::header_bytes};
    vectors[count++] = {payload.data(), length};
    rest -= frame;
  }
  if (rest > 0) {
    vectors[count++] = {rest_.data(), rest};
  }
  return vectors.first(count);
}

bool ReadAhead::consume(std::size_t bytes, FrameReader& reader, Receiver& receiver) {
  const auto next = [&bytes](std::size_t most) {
    const std::size_t count = std::min(bytes, most);
    bytes -= count;
    return count;
  };
  for (std::size_t i = 0; i < frames_ && bytes > 0; ++i) {
    const std::span<const std::byte> header = std::span(headers_[i]).first(next(wire::header_bytes));
    const std::size_t payload = next(payloads_[i].size());
    if (!reader.consume(header, receiver) || !reader.consume(payloads_[i], payload, receiver)) {
      return false;
    }
  }
  return reader.consume(std::span(rest_).first(bytes), receiver);
}

}  // namespace shoal::tcp
