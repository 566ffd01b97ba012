// The wire format alone: headers and every payload that is not elements. Whatever the bytes are, decoding ends, keeps
// the limits, and what it accepts means the same after another trip over the wire.
#include "base/limits.h"
#include "fuzz/input.h"
#include "wire/bytes.h"
#include "wire/crc32c.h"
#include "wire/epoch.h"
#include "wire/frame.h"
#include "wire/late.h"
#include "wire/opening.h"

using namespace shoal;
using fuzz::require;

namespace {

void header(wire::ConstBytes bytes, bool mend) {
  if (bytes.size() < wire::header_bytes) {
    return;
  }
  std::array<std::byte, wire::header_bytes> copy{};
  std::copy_n(bytes.begin(), copy.size(), copy.begin());
  if (mend) {
    wire::put(copy.data() + 36, wire::crc32c(std::span(copy).first<36>()));
  }
  wire::Header read;
  if (wire::decode(copy, read).ok()) {
    std::array<std::byte, wire::header_bytes> again{};
    wire::encode(read, again);
    require(again == copy, "a header that was accepted has the same bytes when it is written");
  }
}

void opening(wire::ConstBytes bytes) {
  wire::Opening read;
  std::size_t inline_offset = 0;
  if (!wire::decode(bytes, read, inline_offset).ok()) {
    return;
  }
  require(inline_offset % 64 == 0 && inline_offset + read.inline_bytes == bytes.size(), "inline data ends the payload");
  require(read.name.size() <= limits::name_bytes && read.text.size() <= limits::text_bytes, "texts keep their limits");
  require(read.shape.size() <= limits::dimensions && read.splits.size() <= limits::world_size, "lists keep theirs");
  const std::size_t limit = wire::opening_limit(read.splits.size(), read.inline_bytes);
  require(bytes.size() <= limit + read.have.size() * sizeof(Range), "opening_limit() is one");
  require(read.have.size() <= limits::ranges, "ranges keep their limit");
  require(RangeSet(read.have).ranges() == read.have, "ranges are ascending and apart");
  wire::Bytes written = wire::encode(read);
  written.resize(written.size() + read.inline_bytes);
  wire::Opening again;
  require(wire::decode(written, again, inline_offset).ok(), "an opening that was accepted can be written");
  require(again.name == read.name && again.text == wire::cut(read.text) && again.shape == read.shape &&
              again.splits == read.splits && again.key == read.key && again.group == read.group &&
              again.bytes == read.bytes && again.collective == read.collective && again.failed == read.failed &&
              again.finished == read.finished && again.code == read.code && again.rank == read.rank &&
              again.exchange == read.exchange && again.have == read.have,
          "an opening is the same after another trip");
}

void failure(wire::ConstBytes bytes) {
  wire::Failure read;
  wire::Failure again;
  if (wire::decode(bytes, read).ok()) {
    require(wire::decode(wire::encode(read), again).ok(), "a failure that was accepted can be written");
    require(again.status.code == read.status.code && again.status.rank == read.status.rank, "a failure is the same");
  }
}

void loss(wire::ConstBytes bytes) {
  wire::Loss read;
  wire::Loss again;
  if (wire::decode(bytes, read).ok()) {
    require(wire::decode(wire::encode(read), again).ok(), "a loss that was accepted can be written");
    require(again.kind == read.kind && again.index == read.index, "a loss is the same");
  }
}

template <class Payload>
void list(wire::ConstBytes bytes) {
  Payload read;
  if (wire::decode(bytes, read).ok()) {
    const wire::Bytes written = wire::encode(read);
    require(written.size() == bytes.size(), "a list that was accepted has the same length when it is written");
  }
}

void late(wire::ConstBytes bytes) {
  wire::Late read;
  if (wire::decode(bytes, read).ok()) {
    require(read.members.size() <= wire::late_members, "LATE lists a few");
    const wire::Bytes written = wire::encode(read);
    require(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()), "a LATE is the same");
  }
}

void epoch(wire::ConstBytes bytes) {
  wire::Epoch read;
  wire::Epoch again;
  if (wire::decode(bytes, read).ok()) {
    require(wire::decode(wire::encode(read), again).ok(), "an epoch that was accepted can be written");
    require(again.weights == read.weights && again.text == wire::cut(read.text), "an epoch is the same");
  }
}

void attempt(wire::ConstBytes bytes) {
  wire::Attempt read;
  if (wire::decode(bytes, read).ok()) {
    const wire::Bytes written = wire::encode(read);
    require(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()), "an attempt is the same");
  }
}

void reached(wire::ConstBytes bytes) {
  wire::Reached read;
  if (wire::decode(bytes, read).ok()) {
    const wire::Bytes written = wire::encode(read);
    require(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()),
            "what came of an attempt is the same");
  }
}

void missing_ranges(wire::ConstBytes bytes) {
  const Range shard{64, std::uint64_t{1} << 40};
  std::vector<wire::MissingRange> read;
  if (wire::decode(bytes, shard, read).ok()) {
    const wire::Bytes written = wire::encode(read);
    require(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()), "missing ranges are the same");
    for (const wire::MissingRange& one : read) {
      require(!one.range.empty() && intersection(one.range, shard) == one.range,
              "a missing range is a part of the shard");
    }
  }
}

void have(wire::ConstBytes bytes) {
  std::vector<std::uint64_t> read;
  if (wire::decode_numbers(bytes, read).ok()) {
    require(read.size() <= wire::have_at_once && wire::encode_numbers(read).size() == bytes.size(), "HAVE is the same");
  }
}

void called(wire::ConstBytes bytes) {
  Hash128 group;
  require(wire::decode_join(bytes, group).ok() == (bytes.size() == wire::join_bytes), "a JOIN is a group");
  wire::Opening read;
  if (wire::decode_called(bytes, read).ok()) {
    const wire::Bytes written = wire::encode_called(read);
    wire::Opening again;
    require(wire::decode_called(written, again).ok() && again.key == read.key && again.name == read.name,
            "what was called is the same");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t kind = input.below(12);
  const std::vector<std::byte> bytes = input.bytes(size);
  switch (kind) {
    case 0:
    case 1:
      header(bytes, kind == 1);
      break;
    case 2:
      opening(bytes);
      break;
    case 3:
      failure(bytes);
      break;
    case 4:
      loss(bytes);
      break;
    case 5:
      list<wire::Sizes>(bytes);
      break;
    case 6:
      list<wire::GroupMembers>(bytes);
      break;
    case 7:
      late(bytes);
      break;
    case 8:
      epoch(bytes);
      break;
    case 9:
      missing_ranges(bytes);
      break;
    case 10:
      attempt(bytes);
      reached(bytes);
      break;
    default:
      have(bytes);
      called(bytes);
      break;
  }
  return 0;
}
