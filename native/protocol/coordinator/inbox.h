// The frames that workers are sending to the coordinator, one a link.
//
// Each rank may say a megabyte of what it waits for at any time, and there are thousands: so that is counted before it
// is read, and what there is no room for goes where all that is thrown away goes.
//
//   arriving() = bytes of the frames that are counted and have not come whole.
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
  // The same of one that is counted. `has_room`: for what is arriving with it.
  std::byte* begin_counted(LinkId link, const wire::Header& header, bool has_room);

  const wire::Header& header(LinkId link) const { return frames_.at(link).header; }
  const wire::Bytes& payload(LinkId link) const { return frames_.at(link).payload; }
  // What has come is not counted any more; nothing if it was thrown away.
  std::optional<wire::Bytes> take_counted(LinkId link);
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
  wire::Bytes unread_;  // of all links
};

}  // namespace shoal
