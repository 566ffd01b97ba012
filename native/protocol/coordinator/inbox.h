// The frame that each worker is sending to the coordinator.
//
// Each of thousands of ranks may send 1 MiB of WAITS at any time. So their size is counted before they are read, and a
// payload without room is read into a scratch buffer that all links share.
//
//   arriving() = bytes of counted frames that have not come whole.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>

#include "protocol/machine.h"

namespace shoal {

class Inbox {
 public:
  // Where the payload goes.
  std::byte* begin(LinkId link, const wire::Header& header);
  // The same for a frame that is counted. `has_room`: there is room for it beside all that is arriving.
  std::byte* begin_counted(LinkId link, const wire::Header& header, bool has_room);

  const wire::Header& header(LinkId link) const { return frames_.at(link).header; }
  const wire::Bytes& payload(LinkId link) const { return frames_.at(link).payload; }
  // The counted frame has come whole, and is not counted any more. Nothing: it had no room.
  std::optional<wire::Bytes> take_counted(LinkId link);
  // The frame has come whole, and is not wanted.
  void drop(LinkId link);
  // The link is gone.
  void forget(LinkId link);

  std::size_t arriving() const { return arriving_; }
  void check_invariants() const;

 private:
  struct Frame {
    wire::Header header;
    wire::Bytes payload;
    std::size_t counted = 0;
  };

  std::unordered_map<LinkId, Frame> frames_;
  std::size_t arriving_ = 0;
  wire::Bytes unread_;  // the scratch buffer
};

}  // namespace shoal
