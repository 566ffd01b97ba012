// The incremental reader of the TCP driver: however a stream is cut into pieces, a link sees the frames that are in it,
// and ends where a reader that has all of it at once ends.
#include <sys/socket.h>
#include <unistd.h>

#include "drivers/tcp/link.h"
#include "fuzz/damage.h"
#include "fuzz/input.h"

using namespace shoal;
using fuzz::Frame;
using fuzz::Input;
using fuzz::require;

namespace {

// Most pieces that a stream is cut into: each costs two calls of the operating system.
constexpr std::size_t most_pieces = 128;

// What a machine allows, and two kinds of frames that it refuses: in the header, and in the payload.
constexpr std::uint32_t longest_payload = 4096;
Status judge_header(const wire::Header& header) {
  return header.length > longest_payload ? Status::error(Code::protocol, "too long") : Status{};
}
Status judge_payload(const wire::Bytes& payload) {
  return !payload.empty() && payload.front() == std::byte{0xEE} ? Status::error(Code::protocol, "refused") : Status{};
}

struct Seen {
  std::vector<Frame> frames;
  bool refused = false;
};

// All at once: the reference.
Seen read_whole(wire::ConstBytes stream) {
  Seen seen;
  while (stream.size() >= wire::header_bytes) {
    Frame frame;
    const bool good = wire::decode(stream.first<wire::header_bytes>(), frame.header).ok();
    if (!good || !judge_header(frame.header).ok()) {
      seen.refused = true;
      break;
    }
    stream = stream.subspan(wire::header_bytes);
    if (stream.size() < frame.header.length) {
      break;
    }
    frame.payload.assign(stream.begin(), stream.begin() + frame.header.length);
    stream = stream.subspan(frame.header.length);
    seen.refused = !judge_payload(frame.payload).ok();
    seen.frames.push_back(std::move(frame));
    if (seen.refused) {
      break;
    }
  }
  return seen;
}

struct Keeper final : Receiver {
  Placement frame_begins(LinkId /*link*/, const wire::Header& header) override {
    if (Status status = judge_header(header); !status.ok()) {
      return {std::move(status), nullptr};
    }
    present = header;
    payload = header.length > 0 ? pool.take(header.length) : Buffer();
    return {{}, payload.data(), exchanges ? &payload : nullptr};
  }
  Buffer spare(std::size_t bytes) override { return exchanges ? pool.take(bytes) : Buffer(); }
  Status frame_ends(LinkId /*link*/) override {
    seen.frames.push_back({present, wire::Bytes(payload.data(), payload.data() + payload.size())});
    return judge_payload(seen.frames.back().payload);
  }
  bool exchanges = false;  // buffers
  BufferPool pool{1 << 20};
  wire::Header present;
  Buffer payload;
  Seen seen;
};

// Frames that are right, that are almost right, and other bytes.
wire::Bytes make_stream(Input& input, std::vector<std::size_t>& pieces) {
  wire::Bytes stream;
  std::size_t length = 0;
  for (int i = 0; i < 24 && !input.empty(); ++i) {
    const std::size_t kind = input.below(8);
    if (kind == 0) {
      const wire::Bytes other = input.bytes(input.below(64));
      stream.insert(stream.end(), other.begin(), other.end());
    } else {
      if (!input.once_in(3)) {  // else as long as the one before
        length = input.once_in(2) ? input.number(2) % longest_payload : input.byte();
      }
      Frame frame{{.type = wire::Type::data, .dtype = DType::uint8, .operation = input.byte()},
                  wire::Bytes(length, static_cast<std::byte>(input.byte()))};
      frame.header.length = static_cast<std::uint32_t>(frame.payload.size());
      if (kind == 1) {
        fuzz::damage(frame, input);
      }
      const std::size_t at = stream.size();
      stream.resize(at + wire::header_bytes);
      wire::encode(frame.header, std::span(stream).subspan(at).first<wire::header_bytes>());
      if (kind == 2) {
        stream[at + input.below(wire::header_bytes)] ^= static_cast<std::byte>(input.byte());
      }
      stream.insert(stream.end(), frame.payload.begin(), frame.payload.end());
    }
    pieces.push_back(input.once_in(2) ? input.byte() : input.number(2));
  }
  return stream;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const bool exchanges = input.once_in(2);
  std::vector<std::size_t> pieces;
  const wire::Bytes stream = make_stream(input, pieces);
  if (stream.empty()) {
    return 0;
  }
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there are sockets");
  const os::Descriptor far(ends[1]);
  tcp::Link link(1, os::Descriptor(ends[0]), {});
  Keeper keeper;
  keeper.exchanges = exchanges;
  tcp::LinkCounters counters;
  std::size_t written = 0;
  tcp::Link::Progress progress = tcp::Link::Progress::idle;
  for (std::size_t i = 0; written < stream.size() && progress != tcp::Link::Progress::lost; ++i) {
    const std::size_t piece = std::max(pieces[i % pieces.size()], stream.size() / most_pieces + 1);
    const std::size_t count = std::min(piece, stream.size() - written);
    const ssize_t taken = ::send(far.number(), stream.data() + written, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    require(taken > 0, "a socket that is read has room");
    written += static_cast<std::size_t>(taken);
    progress = link.receive(keeper, counters);
  }
  if (progress != tcp::Link::Progress::lost) {
    ::shutdown(far.number(), SHUT_WR);
    progress = link.receive(keeper, counters);
    require(progress == tcp::Link::Progress::lost, "the end of a stream ends the link");
  }
  keeper.seen.refused = link.why().code == Code::protocol;
  const Seen expected = read_whole(stream);
  require(keeper.seen.refused == expected.refused, "a link refuses what the reference refuses");
  require(keeper.seen.frames.size() == expected.frames.size(), "a link sees as many frames as the reference");
  for (std::size_t i = 0; i < expected.frames.size(); ++i) {
    require(keeper.seen.frames[i].header == expected.frames[i].header &&
                keeper.seen.frames[i].payload == expected.frames[i].payload,
            "a link sees the frames that the reference sees");
  }
  return 0;
}
