// LATE, a server's answer to ASK: docs/protocol/format.md, "Other payloads".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "wire/opening.h"

namespace shoal::wire {

struct Late {
  enum class Why : std::uint8_t {
    not_opened = 1,     // it has not called the operation
    owes_data = 2,      // it has, and its contribution does not come
    does_not_read = 3,  // frames to it stay unread
  };
  struct Member {
    std::uint32_t rank = 0;
    Why why = Why::not_opened;
    Collective last = Collective::none;  // what it opened last at this server; none: nothing yet
    std::string last_name;
    std::uint32_t silent_ms = 0;  // since its last frame came to this server
  };

  std::uint32_t count = 0;      // how many members the operation waits for here
  std::vector<Member> members;  // the first of them
};

inline constexpr std::size_t late_members = 16;

std::size_t late_limit();
Bytes encode(const Late& late);
Status decode(ConstBytes payload, Late& late);

}  // namespace shoal::wire
