#include "wire/late.h"

#include "base/limits.h"
#include "wire/bytes.h"

namespace shoal::wire {

namespace {

constexpr std::size_t count_bytes = 4;
constexpr std::size_t member_bytes = 12;

}  // namespace

std::size_t late_limit() { return count_bytes + late_members * (member_bytes + limits::name_bytes); }

Bytes encode(const Late& late) {
  Bytes bytes;
  append(bytes, late.count);
  for (const Late::Member& member : late.members) {
    append(bytes, member.rank);
    append(bytes, static_cast<std::uint8_t>(member.why));
    append(bytes, static_cast<std::uint8_t>(member.last));
    append(bytes, static_cast<std::uint16_t>(member.last_name.size()));
    append(bytes, member.silent_ms);
    append_text(bytes, member.last_name);
  }
  return bytes;
}

Status decode(ConstBytes payload, Late& late) {
  if (payload.size() < count_bytes || payload.size() > late_limit()) {
    return refused("a LATE of " + std::to_string(payload.size()) + " bytes");
  }
  late.count = get<std::uint32_t>(payload.data());
  late.members.clear();
  ConstBytes rest = payload.subspan(count_bytes);
  while (!rest.empty()) {
    if (rest.size() < member_bytes || late.members.size() == late_members) {
      return refused("a LATE that does not end where its last rank does");
    }
    Late::Member member;
    member.rank = get<std::uint32_t>(rest.data());
    member.why = static_cast<Late::Why>(get<std::uint8_t>(rest.data() + 4));
    member.last = static_cast<Collective>(get<std::uint8_t>(rest.data() + 5));
    const std::size_t name = get<std::uint16_t>(rest.data() + 6);
    member.silent_ms = get<std::uint32_t>(rest.data() + 8);
    rest = rest.subspan(member_bytes);
    if (member.why < Late::Why::not_opened || member.why > Late::Why::does_not_read || member.last > Collective::last ||
        name > limits::name_bytes || name > rest.size()) {
      return refused("a LATE with a rank that is late in no known way");
    }
    member.last_name = text_of(rest.first(name));
    rest = rest.subspan(name);
    late.members.push_back(std::move(member));
  }
  if (late.count < late.members.size()) {
    return refused("a LATE that lists more ranks than it counts");
  }
  return {};
}

}  // namespace shoal::wire
