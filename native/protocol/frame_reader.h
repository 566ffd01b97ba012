// Finds the frames in a stream of bytes that arrives cut anywhere.
//
// Promises: a header is checked (wire/frame.h) before the machine hears of it. Every byte of a payload goes to the
// place that the machine named. After a refused frame or stop() the machine hears nothing more.
//   header_received < header_bytes; while bytes of a payload are missing, no byte of the next header has come
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/status.h"
#include "protocol/machine.h"
#include "wire/frame.h"

namespace shoal {

// Hears of frames as they arrive. It may call stop() from within these calls.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual Placement frame_begins(LinkId link, const wire::Header& header) = 0;
  // As Machine::spare().
  virtual Buffer spare(std::size_t /*bytes*/) { return {}; }
  virtual Status frame_ends(LinkId link) = 0;
};

class FrameReader {
 public:
  explicit FrameReader(LinkId link) : link_(link) {}

  // Takes the next bytes of the stream. False: the stream has ended, see why().
  bool consume(std::span<const std::byte> bytes, Receiver& receiver);

  // The same for the first `count` bytes of `filled`. If they begin a payload of exactly the buffer's size, the buffer
  // is exchanged for the machine's instead of copied (Placement::buffer).
  bool consume(Buffer& filled, std::size_t count, Receiver& receiver);

  // Where the next bytes of the stream belong, if they are a payload's. A caller that has read `bytes` of them to there
  // calls placed(). False: as with consume().
  std::span<std::byte> place() const { return {payload_, payload_missing_}; }
  bool placed(std::size_t bytes, Receiver& receiver);

  bool in_frame() const { return payload_missing_ > 0 || header_received_ > 0; }
  // Bytes of the last payload; the next is probably as long.
  std::size_t last_length() const { return last_length_; }

  // The link is closed.
  void stop() { stopped_ = true; }
  // Why a frame was refused; ok: none was.
  const Status& why() const { return why_; }

 private:
  bool begin_frame(Receiver& receiver);
  bool end_frame(Receiver& receiver);
  bool refuse(Status why);

  LinkId link_;
  std::array<std::byte, wire::header_bytes> header_{};
  std::size_t header_received_ = 0;
  Buffer* buffer_ = nullptr;         // the payload's, if it may be exchanged
  std::byte* payload_ = nullptr;     // where the rest of the payload goes
  std::size_t payload_missing_ = 0;  // bytes; above 0: a payload is being received
  std::size_t last_length_ = 0;
  bool stopped_ = false;
  Status why_;
};

}  // namespace shoal
