// The memory that a link reads into behind the payload that it is receiving: what comes there has no place yet.
//
// Frames come in rows, all of one size. So it is laid out as that many frames like the last one, each with a buffer of
// the machine's own, which the machine takes as it is if such a frame has come (FrameReader). Whatever else has come is
// copied to its place.
//
// To be used while a link receives, and for one machine: a buffer that nobody took goes back to it.
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

  // Lays it out for what comes behind a frame whose payload had `length` bytes, in `vectors` (at least most_vectors):
  // returns those that are to be read into, in their order.
  std::span<iovec> prepare(std::span<iovec> vectors, std::size_t length, Receiver& receiver);

  // Gives the reader the first `bytes` of it. False: as with FrameReader::consume().
  bool consume(std::size_t bytes, FrameReader& reader, Receiver& receiver);

 private:
  // Where frames are of at most so many bytes, many are read at once, or all of one: even copied they take less time
  // than another call, after which the kernel acknowledges again. Among larger payloads only the next header is read:
  // its own payload shall go to its place directly.
  static constexpr std::size_t capacity = std::size_t{64} * 1024 + wire::header_bytes;

  std::size_t frames_ = 0;
  std::array<std::array<std::byte, wire::header_bytes>, most_frames> headers_;
  std::array<Buffer, most_frames> payloads_;
  std::array<std::byte, capacity> rest_;
};

}  // namespace shoal::tcp
