#include "wire/waits.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "wire/bytes.h"

namespace shoal::wire {

namespace {

// Takes numbers and texts off the front of a payload. Once something is missing, all that follows is 0 and empty.
class Reader {
 public:
  explicit Reader(ConstBytes rest) : rest_(rest) {}

  template <class Number>
  Number number() {
    const ConstBytes bytes = take(sizeof(Number));
    return bytes.empty() ? Number{} : get<Number>(bytes.data());
  }
  std::string text(std::size_t length) { return text_of(take(length)); }
  ConstBytes take(std::size_t count) {
    if (count > rest_.size()) {
      is_short_ = true;
      rest_ = {};
      return {};
    }
    const ConstBytes taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  // A count of items of at least so many bytes; 0 if the payload cannot hold them.
  std::size_t count(std::size_t least_bytes) {
    const auto count = number<std::uint32_t>();
    if (count > rest_.size() / least_bytes) {
      is_short_ = true;
      rest_ = {};
      return 0;
    }
    return count;
  }
  Status end(const char* what) const {
    return is_short_ || !rest_.empty() ? refused(std::string(what) + " that does not end where its last part does")
                                       : Status{};
  }

 private:
  ConstBytes rest_;
  bool is_short_ = false;
};

constexpr std::size_t call_bytes = 24;
constexpr std::size_t wait_bytes = call_bytes + 8;
constexpr std::size_t stride_bytes = 12;

void append(Bytes& bytes, const Call& call) {
  bytes.insert(bytes.end(), call.group.bytes.begin(), call.group.bytes.end());
  wire::append(bytes, call.occurrence);
  wire::append(bytes, static_cast<std::uint32_t>(call.name.size()));
  append_text(bytes, call.name);
}

Call call_from(Reader& reader) {
  Call call;
  const ConstBytes group = reader.take(call.group.bytes.size());
  std::copy(group.begin(), group.end(), call.group.bytes.begin());
  call.occurrence = reader.number<std::uint32_t>();
  call.name = reader.text(reader.number<std::uint32_t>());
  return call;
}

void append(Bytes& bytes, const std::vector<Call>& calls) {
  wire::append(bytes, static_cast<std::uint32_t>(calls.size()));
  for (const Call& call : calls) {
    append(bytes, call);
  }
}

// Nothing if there is no rank in it, or not above `before`.
std::optional<Stride> stride_from(Reader& reader, std::int64_t before) {
  Stride stride;
  stride.first = reader.number<std::uint32_t>();
  stride.count = reader.number<std::uint32_t>();
  stride.step = reader.number<std::uint32_t>();
  const std::uint64_t length = stride.count == 0 ? 0 : std::uint64_t{stride.count - 1} * stride.step;
  const bool is_one =
      stride.count > 0 && stride.step > 0 && length <= limits::world_size && stride.first < limits::world_size;
  return is_one && stride.first > before ? std::optional(stride) : std::nullopt;
}

std::vector<Call> calls_from(Reader& reader) {
  std::vector<Call> calls(reader.count(call_bytes));
  for (Call& call : calls) {
    call = call_from(reader);
  }
  return calls;
}

}  // namespace

std::vector<Stride> strides_of(std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<Stride> strides;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Stride* const last = strides.empty() ? nullptr : &strides.back();
    if (last != nullptr && last->count == 1) {
      *last = {last->first, 2, ranks[i] - last->first};
    } else if (last != nullptr && last->last() + last->step == ranks[i]) {
      ++last->count;
    } else {
      strides.push_back({ranks[i], 1, 1});
    }
  }
  return strides;
}

std::vector<std::uint32_t> ranks_of(const std::vector<Stride>& strides) {
  std::vector<std::uint32_t> ranks;
  for (const Stride& stride : strides) {
    for (std::uint32_t i = 0; i < stride.count; ++i) {
      ranks.push_back(stride.first + i * stride.step);
    }
  }
  return ranks;
}

Bytes encode(const Waits& waits) {
  Bytes bytes;
  append(bytes, waits.changes);
  append(bytes, static_cast<std::uint32_t>(waits.waits.size()));
  for (const Wait& wait : waits.waits) {
    append(bytes, wait.call);
    append(bytes, static_cast<std::uint32_t>(wait.collective));
    append(bytes, static_cast<std::uint32_t>(wait.members.size()));
    for (const Stride& stride : wait.members) {
      append(bytes, stride.first);
      append(bytes, stride.count);
      append(bytes, stride.step);
    }
  }
  return bytes;
}

Status decode(ConstBytes payload, Waits& waits) {
  Reader reader(payload);
  waits.changes = reader.number<std::uint64_t>();
  waits.waits.assign(reader.count(wait_bytes), {});
  bool is_known = waits.changes != 0;
  for (Wait& wait : waits.waits) {
    wait.call = call_from(reader);
    const auto collective = reader.number<std::uint32_t>();
    is_known = is_known && collective <= static_cast<std::uint32_t>(Collective::last);
    wait.collective = static_cast<Collective>(collective);
    wait.members.assign(reader.count(stride_bytes), {});
    std::int64_t before = -1;
    for (std::size_t i = 0; is_known && i < wait.members.size(); ++i) {
      const std::optional<Stride> stride = stride_from(reader, before);
      is_known = stride.has_value();
      wait.members[i] = stride.value_or(Stride{});
      before = is_known ? stride->last() : before;
    }
  }
  return is_known ? reader.end("a WAITS") : refused("a WAITS of an unknown kind");
}

Bytes encode(const Probe& probe) {
  Bytes bytes;
  append(bytes, probe.round);
  append(bytes, probe.calls);
  return bytes;
}

Status decode(ConstBytes payload, Probe& probe) {
  Reader reader(payload);
  probe.round = reader.number<std::uint32_t>();
  probe.calls = calls_from(reader);
  return reader.end("a PROBE");
}

Bytes encode(const Calls& calls) {
  Bytes bytes;
  append(bytes, calls.round);
  append(bytes, static_cast<std::uint32_t>(calls.called.size()));
  append(bytes, calls.changes);
  for (bool called : calls.called) {
    append(bytes, static_cast<std::uint8_t>(called ? 1 : 0));
  }
  return bytes;
}

Status decode(ConstBytes payload, Calls& calls) {
  Reader reader(payload);
  calls.round = reader.number<std::uint32_t>();
  const auto count = reader.number<std::uint32_t>();
  calls.changes = reader.number<std::uint64_t>();
  calls.called.clear();
  for (std::byte called : reader.take(count)) {
    calls.called.push_back(called != std::byte{0});
  }
  return reader.end("a CALLS");
}

Bytes encode(const Circle& circle) {
  Bytes bytes;
  append(bytes, circle.calls);
  const std::string text = cut(circle.why);
  append(bytes, static_cast<std::uint32_t>(text.size()));
  append_text(bytes, text);
  return bytes;
}

Status decode(ConstBytes payload, Circle& circle) {
  Reader reader(payload);
  circle.calls = calls_from(reader);
  circle.why = reader.text(reader.number<std::uint32_t>());
  return reader.end("a CIRCLE");
}

}  // namespace shoal::wire
