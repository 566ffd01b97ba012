// The frames in a stream of bytes that comes in pieces, cut anywhere.
//
// Promises: a header is checked (wire/frame.h) before anybody hears of it; a payload goes byte by byte to the place
// that the machine named; nobody hears of anything after the first frame that was refused, nor after stop().
//   header_received < header_bytes; a payload is missing only while no byte of the next header has come.
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

  // Takes the next bytes of the stream. False: the stream has ended, for why().
  bool consume(std::span<const std::byte> bytes, Receiver& receiver);

  // The same, of bytes that are the first `count` of `filled`. Where they begin a payload of just the buffer's size, it
  // is exchanged for the machine's instead of copied (Placement::buffer).
  bool consume(Buffer& filled, std::size_t count, Receiver& receiver);

  // Where the next bytes of the stream belong, if they are a payload's. Who has read `bytes` of them to there says so
  // with placed(); false: as with consume().
  std::span<std::byte> place() const { return {payload_, payload_missing_}; }
  bool placed(std::size_t bytes, Receiver& receiver);

  bool in_frame() const { return payload_missing_ > 0 || header_received_ > 0; }
  // Bytes of the last payload; the next will be like it.
  std::size_t last_length() const { return last_length_; }

  // The link is closed.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  // Why a frame was refused; ok: none was.
  const Status& why() const { return why_; }

 private:
  bool begin_frame(Receiver& receiver);
  bool end_frame(Receiver& receiver);
  bool refuse(Status why);

  LinkId link_;
  std::array<std::byte, wire::header_bytes> header_{};
  std::size_t header_received_ = 0;
  Buffer* buffer_ = nullptr;         // of the payload, if it may be exchanged
  std::byte* payload_ = nullptr;     // where the rest of the payload goes
  std::size_t payload_missing_ = 0;  // bytes; above 0: a payload is being received
  std::size_t last_length_ = 0;
  bool stopped_ = false;
  Status why_;
};

}  // namespace shoal
