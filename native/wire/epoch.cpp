#include "wire/epoch.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "wire/bytes.h"

namespace shoal::wire {

namespace {

constexpr std::size_t epoch_bytes = 8;
constexpr std::size_t missing_bytes = 24;
constexpr std::uint32_t missing_sends = 1;
constexpr std::uint32_t missing_receives = 2;

}  // namespace

std::size_t epoch_limit(std::size_t servers) { return epoch_bytes + 4 * servers + limits::text_bytes; }

Bytes encode(const Epoch& epoch) {
  Bytes bytes;
  append(bytes, static_cast<std::uint64_t>(epoch.weights.size()));
  for (std::uint32_t weight : epoch.weights) {
    append(bytes, weight);
  }
  append_text(bytes, cut(epoch.text));
  return bytes;
}

Status decode(ConstBytes payload, Epoch& epoch) {
  const std::uint64_t weights = payload.size() < epoch_bytes ? 0 : get<std::uint64_t>(payload.data());
  if (payload.size() < epoch_bytes || weights > (payload.size() - epoch_bytes) / 4) {
    return refused("an EPOCH of " + std::to_string(payload.size()) + " bytes is too short");
  }
  epoch.weights.clear();
  for (std::size_t i = 0; i < weights; ++i) {
    epoch.weights.push_back(get<std::uint32_t>(payload.data() + epoch_bytes + 4 * i));
  }
  epoch.text = text_of(payload.subspan(epoch_bytes + 4 * weights));
  return {};
}

Bytes encode(const Attempt& attempt) {
  Bytes bytes;
  append(bytes, attempt.server);
  append(bytes, attempt.number);
  return bytes;
}

Status decode(ConstBytes payload, Attempt& attempt) {
  if (payload.size() != attempt_bytes) {
    return refused("an attempt to reach a server, of " + std::to_string(payload.size()) + " bytes");
  }
  attempt = {get<std::uint32_t>(payload.data()), get<std::uint32_t>(payload.data() + 4)};
  return attempt.number != 0 ? Status{} : refused("attempt 0 to reach a server again");
}

Bytes encode(const Reached& reached) {
  Bytes bytes = encode(reached.attempt);
  bytes.insert(bytes.end(), reached.process.begin(), reached.process.end());
  return bytes;
}

Status decode(ConstBytes payload, Reached& reached) {
  if (payload.size() != attempt_bytes + reached.process.size()) {
    return refused("a REACHED of " + std::to_string(payload.size()) + " bytes");
  }
  const ConstBytes process = payload.subspan(attempt_bytes);
  std::copy(process.begin(), process.end(), reached.process.begin());
  return decode(payload.first(attempt_bytes), reached.attempt);
}

Bytes encode(const std::vector<MissingRange>& missing) {
  Bytes bytes;
  for (const MissingRange& one : missing) {
    append(bytes, one.range.begin);
    append(bytes, one.range.end);
    append(bytes, (one.sends ? missing_sends : 0) | (one.receives ? missing_receives : 0));
    append(bytes, std::uint32_t{0});
  }
  return bytes;
}

std::size_t missing_limit() { return missing_bytes * limits::missing_ranges; }

Status decode(ConstBytes payload, Range shard, std::vector<MissingRange>& missing) {
  if (payload.size() % missing_bytes != 0) {
    return refused("an ADMIT of " + std::to_string(payload.size()) + " bytes");
  }
  missing.clear();
  std::uint64_t end = shard.begin;
  for (const std::byte* at = payload.data(); at != payload.data() + payload.size(); at += missing_bytes) {
    const auto flags = get<std::uint32_t>(at + 16);
    const MissingRange one{{get<std::uint64_t>(at), get<std::uint64_t>(at + 8)},
                           (flags & missing_sends) != 0,
                           (flags & missing_receives) != 0};
    if (one.range.begin < end || one.range.begin >= one.range.end || one.range.end > shard.end) {
      return refused("an ADMIT whose ranges are not ascending parts of the server's shard");
    }
    if (flags == 0 || flags > (missing_sends | missing_receives) || get<std::uint32_t>(at + 20) != 0) {
      return refused("an ADMIT with a range of flags " + std::to_string(flags));
    }
    end = one.range.end;
    missing.push_back(one);
  }
  return {};
}

Bytes encode_numbers(const std::vector<std::uint64_t>& operations) {
  Bytes bytes;
  for (std::uint64_t number : operations) {
    append(bytes, number);
  }
  return bytes;
}

Status decode_numbers(ConstBytes payload, std::vector<std::uint64_t>& operations) {
  if (payload.size() % 8 != 0 || payload.size() > 8 * have_at_once) {
    return refused("a HAVE of " + std::to_string(payload.size()) + " bytes");
  }
  operations.clear();
  for (std::size_t at = 0; at < payload.size(); at += 8) {
    operations.push_back(get<std::uint64_t>(payload.data() + at));
  }
  return {};
}

}  // namespace shoal::wire
