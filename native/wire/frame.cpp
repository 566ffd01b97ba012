#include "wire/frame.h"

#include "wire/bytes.h"
#include "wire/crc32c.h"

namespace shoal::wire {

namespace {

std::uint8_t allowed_flags(Type type) {
  switch (type) {
    case Type::result:
      return flag_last;
    case Type::sizes:
      return flag_inline;
    case Type::admit:
      return flag_resumed | flag_full;
    case Type::drop:
      return flag_well;
    case Type::epoch:
      return flag_reopened;
    case Type::window:
      return flag_competing;
    case Type::reached:
      return flag_unreachable;
    case Type::join:
      return flag_over;
    default:
      return 0;
  }
}

bool carries_elements(Type type) { return type == Type::data || type == Type::result; }

}  // namespace

void encode(const Header& header, HeaderBytes bytes) {
  std::byte* at = bytes.data();
  put(at + 0, static_cast<std::uint8_t>(header.type));
  put(at + 1, header.flags);
  put(at + 2, static_cast<std::uint8_t>(header.dtype));
  put(at + 3, header.codec);
  put(at + 4, header.epoch);
  put(at + 8, header.operation);
  put(at + 16, header.offset);
  put(at + 24, header.length);
  put(at + 28, header.credit);
  put(at + 32, header.acknowledged);
  put(at + 36, crc32c(bytes.first<36>()));
}

Status decode(ConstHeaderBytes bytes, Header& header) {
  const std::byte* at = bytes.data();
  if (get<std::uint32_t>(at + 36) != crc32c(bytes.first<36>())) {
    return refused("a frame header with a wrong check: the stream is damaged");
  }
  const auto type = get<std::uint8_t>(at + 0);
  if (type < static_cast<std::uint8_t>(Type::open) || type > static_cast<std::uint8_t>(Type::gone)) {
    return refused("unknown frame type " + std::to_string(type));
  }
  header.type = static_cast<Type>(type);
  header.flags = get<std::uint8_t>(at + 1);
  header.dtype = static_cast<DType>(get<std::uint8_t>(at + 2));
  header.codec = get<std::uint8_t>(at + 3);
  header.epoch = get<std::uint32_t>(at + 4);
  header.operation = get<std::uint64_t>(at + 8);
  header.offset = get<std::uint64_t>(at + 16);
  header.length = get<std::uint32_t>(at + 24);
  header.credit = get<std::uint32_t>(at + 28);
  header.acknowledged = get<std::uint32_t>(at + 32);
  if ((header.flags & ~allowed_flags(header.type)) != 0) {
    return refused(std::string("unknown flags ") + std::to_string(header.flags) + " on " + name_of(header.type));
  }
  if (Status status = check_codec(header.codec); !status.ok()) {
    return status;
  }
  const bool carries = carries_elements(header.type);
  const bool wrong =
      header.dtype == DType::none ? carries && header.length > 0 : !carries || size_of(header.dtype) == 0;
  if (wrong) {
    return refused(std::string("dtype ") + std::to_string(static_cast<int>(header.dtype)) + " on " +
                   name_of(header.type));
  }
  return {};
}

Status check_codec(std::uint8_t codec) {
  return codec <= last_codec ? Status{}
                             : refused("codec " + std::to_string(codec) + " is not known to this version of Shoal");
}

const char* name_of(Type type) {
  switch (type) {
    case Type::open:
      return "OPEN";
    case Type::data:
      return "DATA";
    case Type::result:
      return "RESULT";
    case Type::admit:
      return "ADMIT";
    case Type::grant:
      return "GRANT";
    case Type::fail:
      return "FAIL";
    case Type::drop:
      return "DROP";
    case Type::sizes:
      return "SIZES";
    case Type::late:
      return "LATE";
    case Type::group:
      return "GROUP";
    case Type::leave:
      return "LEAVE";
    case Type::report:
      return "REPORT";
    case Type::lost:
      return "LOST";
    case Type::ended:
      return "ENDED";
    case Type::abort:
      return "ABORT";
    case Type::epoch:
      return "EPOCH";
    case Type::have:
      return "HAVE";
    case Type::window:
      return "WINDOW";
    case Type::ask:
      return "ASK";
    case Type::reconnect:
      return "RECONNECT";
    case Type::reached:
      return "REACHED";
    case Type::waits:
      return "WAITS";
    case Type::probe:
      return "PROBE";
    case Type::calls:
      return "CALLS";
    case Type::circle:
      return "CIRCLE";
    case Type::join:
      return "JOIN";
    case Type::called:
      return "CALLED";
    case Type::gone:
      return "GONE";
  }
  return "an unknown frame";
}

}  // namespace shoal::wire
