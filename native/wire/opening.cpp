#include "wire/opening.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/limits.h"
#include "wire/bytes.h"
#include "wire/frame.h"

namespace shoal::wire {

namespace {

constexpr std::size_t fixed_bytes = 112;
constexpr std::size_t inline_alignment = 64;
constexpr std::size_t failure_bytes = 8;
constexpr std::size_t loss_bytes = 16;
constexpr std::size_t group_bytes = 24;
constexpr std::size_t range_bytes = 16;
constexpr std::uint16_t flag_failed = 1;
constexpr std::uint16_t flag_finished = 2;

std::size_t aligned(std::size_t bytes) { return (bytes + inline_alignment - 1) / inline_alignment * inline_alignment; }

bool known(Code code) { return code <= Code::cancelled; }

// A whole payload of equal numbers.
template <class Number>
std::vector<Number> numbers(ConstBytes bytes) {
  std::vector<Number> values(bytes.size() / sizeof(Number));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = get<Number>(bytes.data() + i * sizeof(Number));
  }
  return values;
}

// Whole ranges, ascending, apart from each other, inside `bytes`.
bool ranges(ConstBytes payload, std::uint64_t bytes, std::vector<Range>& values) {
  std::uint64_t end = 0;
  values.clear();
  for (std::size_t at = 0; at < payload.size(); at += range_bytes) {
    const Range range{get<std::uint64_t>(payload.data() + at), get<std::uint64_t>(payload.data() + at + 8)};
    if (range.begin >= range.end || range.end > bytes || (at > 0 && range.begin <= end)) {
      return false;
    }
    end = range.end;
    values.push_back(range);
  }
  return true;
}

Status check_values(const Opening& opening, DType wire_dtype, std::uint8_t codec, std::uint8_t priority) {
  if (opening.collective > Collective::last || (opening.collective == Collective::none && !opening.failed)) {
    return refused("collective " + std::to_string(static_cast<int>(opening.collective)) + " in OPEN");
  }
  if (opening.op > Operator::last) {
    return refused("operator " + std::to_string(static_cast<int>(opening.op)) + " in OPEN");
  }
  if (opening.dtype != DType::none && size_of(opening.dtype) == 0) {
    return refused("dtype " + std::to_string(static_cast<int>(opening.dtype)) + " in OPEN");
  }
  if (!may_travel_as(opening.dtype, wire_dtype)) {
    return refused("a wire dtype that is not the dtype is not known to this version of Shoal");
  }
  if (Status status = check_codec(codec); !status.ok()) {
    return status;
  }
  if (priority != 0) {
    return refused("priority " + std::to_string(priority) + " is not known to this version of Shoal");
  }
  if (!std::isfinite(opening.divisor) || opening.divisor < 0) {
    return refused("a divisor in OPEN that divides nothing");
  }
  return {};
}

}  // namespace

std::string cut(const std::string& text) {
  std::size_t size = std::min(text.size(), limits::text_bytes);
  while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U) {
    --size;
  }
  return text.substr(0, size);
}

std::size_t opening_limit(std::size_t size, std::size_t most_inline) {
  return aligned(fixed_bytes + 8 * limits::dimensions + 8 * size + limits::name_bytes + limits::text_bytes) +
         most_inline;
}

Bytes encode(const Opening& opening) {
  Bytes bytes(fixed_bytes);
  const std::string text = cut(opening.text);
  std::byte* at = bytes.data();
  put(at + 0, static_cast<std::uint8_t>(opening.collective));
  put(at + 1, static_cast<std::uint8_t>(opening.op));
  put(at + 2, static_cast<std::uint8_t>(opening.dtype));
  put(at + 3, static_cast<std::uint8_t>(opening.wire_dtype()));
  put(at + 6, static_cast<std::uint16_t>((opening.failed ? flag_failed : 0) | (opening.finished ? flag_finished : 0)));
  put(at + 8, opening.root);
  put(at + 12, opening.occurrence);
  put(at + 16, opening.key);
  put(at + 32, opening.group);
  put(at + 48, opening.divisor);
  put(at + 64, opening.bytes);
  put(at + 72, static_cast<std::uint16_t>(opening.name.size()));
  put(at + 74, static_cast<std::uint16_t>(opening.shape.size()));
  put(at + 76, static_cast<std::uint32_t>(opening.splits.size()));
  put(at + 80, static_cast<std::uint32_t>(text.size()));
  put(at + 84, opening.inline_bytes);
  put(at + 88, opening.exchange);
  put(at + 96, static_cast<std::uint32_t>(opening.have.size()));
  put(at + 100, static_cast<std::uint8_t>(opening.code));
  put(at + 104, opening.rank);
  for (std::int64_t value : opening.shape) {
    append(bytes, value);
  }
  for (std::int64_t value : opening.splits) {
    append(bytes, value);
  }
  for (const Range& range : opening.have) {
    append(bytes, range.begin);
    append(bytes, range.end);
  }
  append_text(bytes, opening.name);
  append_text(bytes, text);
  bytes.resize(aligned(bytes.size()));
  return bytes;
}

Status decode(ConstBytes payload, Opening& opening, std::size_t& inline_offset) {
  if (payload.size() < fixed_bytes) {
    return refused("an OPEN of " + std::to_string(payload.size()) + " bytes is too short");
  }
  const std::byte* at = payload.data();
  opening.collective = static_cast<Collective>(get<std::uint8_t>(at + 0));
  opening.op = static_cast<Operator>(get<std::uint8_t>(at + 1));
  opening.dtype = static_cast<DType>(get<std::uint8_t>(at + 2));
  const auto wire_dtype = static_cast<DType>(get<std::uint8_t>(at + 3));
  const auto flags = get<std::uint16_t>(at + 6);
  opening.failed = (flags & flag_failed) != 0;
  opening.finished = (flags & flag_finished) != 0;
  opening.root = get<std::uint32_t>(at + 8);
  opening.occurrence = get<std::uint32_t>(at + 12);
  opening.key = get<Hash128>(at + 16);
  opening.group = get<Hash128>(at + 32);
  opening.divisor = get<double>(at + 48);
  opening.bytes = get<std::uint64_t>(at + 64);
  const std::size_t name = get<std::uint16_t>(at + 72);
  const std::size_t dimensions = get<std::uint16_t>(at + 74);
  const std::size_t splits = get<std::uint32_t>(at + 76);
  const std::size_t text = get<std::uint32_t>(at + 80);
  opening.inline_bytes = get<std::uint32_t>(at + 84);

  opening.exchange = get<std::uint64_t>(at + 88);
  const std::size_t have = get<std::uint32_t>(at + 96);
  opening.code = static_cast<Code>(get<std::uint8_t>(at + 100));
  opening.rank = get<std::int32_t>(at + 104);

  if (flags > (flag_failed | flag_finished)) {
    return refused("unknown flags " + std::to_string(flags) + " in OPEN");
  }
  if (get<std::uint64_t>(at + 56) != 0 || (get<std::uint32_t>(at + 100) >> 8U) != 0 ||
      get<std::uint32_t>(at + 108) != 0) {
    return refused("reserved bytes that are not 0 in OPEN");
  }
  if (!known(opening.code) || (opening.code != Code::ok && !opening.failed)) {
    return refused("status " + std::to_string(static_cast<int>(opening.code)) + " in OPEN");
  }
  if (name > limits::name_bytes || dimensions > limits::dimensions || splits > limits::world_size ||
      text > limits::text_bytes || have > limits::ranges || opening.inline_bytes > limits::inline_bytes) {
    return refused("an OPEN with lengths beyond the limits");
  }
  if (Status status = check_values(opening, wire_dtype, get<std::uint8_t>(at + 4), get<std::uint8_t>(at + 5));
      !status.ok()) {
    return status;
  }
  opening.travel_as(wire_dtype);
  inline_offset = aligned(fixed_bytes + 8 * dimensions + 8 * splits + range_bytes * have + name + text);
  if (payload.size() != inline_offset + opening.inline_bytes) {
    return refused("an OPEN of " + std::to_string(payload.size()) + " bytes whose parts have " +
                   std::to_string(inline_offset + opening.inline_bytes));
  }
  ConstBytes rest = payload.subspan(fixed_bytes);
  opening.shape = numbers<std::int64_t>(rest.first(8 * dimensions));
  rest = rest.subspan(8 * dimensions);
  opening.splits = numbers<std::int64_t>(rest.first(8 * splits));
  rest = rest.subspan(8 * splits);
  if (!ranges(rest.first(range_bytes * have), opening.bytes, opening.have)) {
    return refused("an OPEN whose ranges are not ascending parts of its buffer");
  }
  rest = rest.subspan(range_bytes * have);
  opening.name = text_of(rest.first(name));
  opening.text = text_of(rest.subspan(name, text));
  return {};
}

Bytes encode(const Failure& failure) {
  Bytes bytes(failure_bytes);
  put(bytes.data(), static_cast<std::uint8_t>(failure.status.code));
  put(bytes.data() + 4, failure.status.rank);
  append_text(bytes, cut(failure.status.message));
  return bytes;
}

Status decode(ConstBytes payload, Failure& failure) {
  if (payload.size() < failure_bytes || payload.size() > failure_bytes + limits::text_bytes) {
    return refused("a FAIL of " + std::to_string(payload.size()) + " bytes");
  }
  const auto code = static_cast<Code>(get<std::uint8_t>(payload.data()));
  if (!known(code) || code == Code::ok) {
    return refused("status " + std::to_string(static_cast<int>(code)) + " in FAIL");
  }
  failure.status = Status::error(code, text_of(payload.subspan(failure_bytes)), get<std::int32_t>(payload.data() + 4));
  return {};
}

Bytes encode(const Loss& loss) {
  Bytes bytes(loss_bytes);
  put(bytes.data(), static_cast<std::uint8_t>(loss.kind));
  put(bytes.data() + 4, loss.index);
  put(bytes.data() + 8, static_cast<std::uint8_t>(loss.status.code));
  append_text(bytes, cut(loss.status.message));
  return bytes;
}

Status decode(ConstBytes payload, Loss& loss) {
  if (payload.size() < loss_bytes || payload.size() > loss_bytes + limits::text_bytes) {
    return refused("a loss of " + std::to_string(payload.size()) + " bytes");
  }
  const auto kind = get<std::uint8_t>(payload.data());
  const auto code = static_cast<Code>(get<std::uint8_t>(payload.data() + 8));
  if (kind != static_cast<std::uint8_t>(Loss::Kind::rank) && kind != static_cast<std::uint8_t>(Loss::Kind::server)) {
    return refused("a loss of kind " + std::to_string(kind));
  }
  if (!known(code) || code == Code::ok) {
    return refused("status " + std::to_string(static_cast<int>(code)) + " in a loss");
  }
  loss.kind = static_cast<Loss::Kind>(kind);
  loss.index = get<std::uint32_t>(payload.data() + 4);
  const std::int32_t rank = loss.kind == Loss::Kind::rank ? static_cast<std::int32_t>(loss.index) : -1;
  loss.status = Status::error(code, text_of(payload.subspan(loss_bytes)), rank);
  return {};
}

Bytes encode(const Sizes& sizes) {
  Bytes bytes;
  append(bytes, sizes.exchange);
  for (std::uint64_t block : sizes.blocks) {
    append(bytes, block);
  }
  return bytes;
}

Status decode(ConstBytes payload, Sizes& sizes) {
  if (payload.size() < 8 || payload.size() % 8 != 0 || payload.size() > 8 + 8 * limits::world_size) {
    return refused("a SIZES of " + std::to_string(payload.size()) + " bytes");
  }
  sizes.exchange = get<std::uint64_t>(payload.data());
  sizes.blocks = numbers<std::uint64_t>(payload.subspan(8));
  return {};
}

Bytes encode(const GroupMembers& group) {
  Bytes bytes(group_bytes);
  put(bytes.data(), group.id);
  put(bytes.data() + 16, static_cast<std::uint32_t>(group.ranks.size()));
  put(bytes.data() + 20, std::uint32_t{group.of_nodes ? 1U : 0U});
  for (std::uint32_t rank : group.ranks) {
    append(bytes, rank);
  }
  return bytes;
}

Status decode(ConstBytes payload, GroupMembers& group) {
  if (payload.size() < group_bytes || payload.size() > group_bytes + 4 * limits::world_size) {
    return refused("a GROUP of " + std::to_string(payload.size()) + " bytes");
  }
  const std::size_t count = get<std::uint32_t>(payload.data() + 16);
  if (payload.size() != group_bytes + 4 * count) {
    return refused("a GROUP of " + std::to_string(payload.size()) + " bytes for " + std::to_string(count) + " ranks");
  }
  const auto flags = get<std::uint32_t>(payload.data() + 20);
  if (flags > 1) {
    return refused("a GROUP with unknown flags");
  }
  group.id = get<Hash128>(payload.data());
  group.of_nodes = flags == 1;
  group.ranks = numbers<std::uint32_t>(payload.subspan(group_bytes));
  return {};
}

Bytes encode_join(const Hash128& group) {
  Bytes bytes;
  append(bytes, group);
  return bytes;
}

Status decode_join(ConstBytes payload, Hash128& group) {
  if (payload.size() != join_bytes) {
    return refused("a JOIN of " + std::to_string(payload.size()) + " bytes");
  }
  group = get<Hash128>(payload.data());
  return {};
}

Bytes encode_called(const Opening& opening) {
  Opening called = opening;
  called.splits.clear();
  called.have.clear();
  called.inline_bytes = 0;
  called.finished = false;
  called.exchange = 0;
  return encode(called);
}

Status decode_called(ConstBytes payload, Opening& opening) {
  std::size_t inline_offset = 0;
  if (Status status = decode(payload, opening, inline_offset); !status.ok()) {
    return status;
  }
  const bool is_plain = opening.splits.empty() && opening.have.empty() && opening.inline_bytes == 0 &&
                        !opening.finished && opening.exchange == 0;
  return is_plain ? Status{} : refused("CALLED of '" + opening.name + "' with what is its caller's alone");
}

std::size_t called_limit() { return opening_limit(0, 0); }

}  // namespace shoal::wire
