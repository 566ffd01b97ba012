// The memory into which a link reads what follows the present payload, before it knows what that is.
//
// Frames tend to come in rows of one size. So the memory is laid out as several frames like the last one, each with a
// buffer of the machine's. If such a frame has come, the machine takes the buffer as it is (FrameReader). Anything else
// is copied to its place.
//
// Used during one receive() of a link, for one machine: buffers that it does not take go back to it.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/buffer.h"
#include "protocol/frame_reader.h"
#include "wire/frame.h"

struct iovec;

namespace shoal::tcp {

class ReadAhead {
 public:
  static constexpr std::size_t most_frames = 4;
  static constexpr std::size_t most_vectors = 2 * most_frames + 1;

  // Lays it out for what follows a frame whose payload had `length` bytes. `vectors` has at least most_vectors entries.
  // Returns the entries to read into, in order.
  std::span<iovec> prepare(std::span<iovec> vectors, std::size_t length, Receiver& receiver);

  // Gives the reader the first `bytes` of it. False: as with FrameReader::consume().
  bool consume(std::size_t bytes, FrameReader& reader, Receiver& receiver);

 private:
  // Frames of at most so many bytes are read many at once: copying them takes less time than another system call, after
  // which the kernel also sends another acknowledgement. Behind a larger payload only the next header is read, so that
  // its own payload goes to its place directly.
  static constexpr std::size_t capacity = std::size_t{64} * 1024 + wire::header_bytes;

  std::size_t frames_ = 0;
  std::array<std::array<std::byte, wire::header_bytes>, most_frames> headers_;
  std::array<Buffer, most_frames> payloads_;
  std::array<std::byte, capacity> rest_;
};

}  // namespace shoal::tcp
