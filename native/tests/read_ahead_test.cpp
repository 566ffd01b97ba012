// What a link reads behind the payload that it is receiving: rows of frames come without a copy, and everything comes
// right, wherever the stream is cut.
#include "drivers/tcp/read_ahead.h"

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "drivers/tcp/link.h"
#include "os/descriptor.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;
using tcp::Link;

constexpr std::size_t long_enough = 3000;  // not to be copied

// Takes frames as worker and server do.
class Taker final : public Receiver {
 public:
  Placement frame_begins(LinkId /*link*/, const wire::Header& header) override {
    payload_ = header.length > 0 ? pool.take(header.length) : Buffer();
    made_ready_ = payload_.data();
    return {{}, payload_.data(), exchanges ? &payload_ : nullptr};
  }
  Buffer spare(std::size_t bytes) override {
    ++spares;
    return exchanges ? pool.take(bytes) : Buffer();
  }
  Status frame_ends(LinkId /*link*/) override {
    uncopied += payload_.data() != made_ready_ ? 1 : 0;
    payloads.push_back(std::move(payload_));
    return {};
  }

  bool exchanges = true;
  BufferPool pool{1 << 20};
  int spares = 0;    // asked for
  int uncopied = 0;  // payloads that came in one
  std::vector<Buffer> payloads;

 private:
  Buffer payload_;
  const std::byte* made_ready_ = nullptr;
};

std::byte value_at(std::size_t frame, std::size_t index) { return static_cast<std::byte>(frame * 37 + index); }

Bytes stream_of(const std::vector<std::size_t>& lengths) {
  Bytes stream;
  for (std::size_t frame = 0; frame < lengths.size(); ++frame) {
    const wire::Header header{
        .type = wire::Type::data, .dtype = DType::uint8, .length = static_cast<std::uint32_t>(lengths[frame])};
    const std::size_t at = stream.size();
    stream.resize(at + wire::header_bytes);
    wire::encode(header, std::span(stream).subspan(at).first<wire::header_bytes>());
    for (std::size_t index = 0; index < lengths[frame]; ++index) {
      stream.push_back(value_at(frame, index));
    }
  }
  return stream;
}

void check(const std::vector<Buffer>& payloads, const std::vector<std::size_t>& lengths) {
  CHECK(payloads.size() == lengths.size());
  for (std::size_t frame = 0; frame < lengths.size(); ++frame) {
    CHECK(payloads[frame].size() == lengths[frame]);
    for (std::size_t index = 0; index < lengths[frame]; ++index) {
      CHECK(payloads[frame].data()[index] == value_at(frame, index));
    }
  }
}

// The stream in pieces that end at `cuts`, each read before the next is sent.
void receive(Taker& taker, const Bytes& stream, std::vector<std::size_t> cuts) {
  const std::pair<int, int> sockets = local_pair();
  const os::Descriptor other(sockets.second);
  Link link(1, tcp::Socket(os::Descriptor(sockets.first)), {});
  tcp::LinkCounters counters;
  cuts.push_back(stream.size());
  std::size_t begin = 0;
  for (const std::size_t end : cuts) {
    CHECK(::send(other.number(), stream.data() + begin, end - begin, 0) == static_cast<ssize_t>(end - begin));
    CHECK(link.receive(taker, counters) == Link::Progress::idle);
    begin = end;
  }
}

TEST(frames_of_one_size_come_without_a_copy) {
  const std::vector<std::size_t> lengths(12, long_enough);
  const std::size_t frame = wire::header_bytes + long_enough;
  Taker taker;
  receive(taker, stream_of(lengths), {2 * frame, 4 * frame, 5 * frame, 9 * frame});
  check(taker.payloads, lengths);
  CHECK(taker.uncopied == 10);  // of the first two it was not known how long they are
}

TEST(a_frame_of_which_a_part_has_come_is_not_copied) {
  const std::vector<std::size_t> lengths(3, long_enough);
  const std::size_t frame = wire::header_bytes + long_enough;
  Taker taker;
  receive(taker, stream_of(lengths), {frame, frame + 1000, 2 * frame + wire::header_bytes, 2 * frame + 2000});
  check(taker.payloads, lengths);
  CHECK(taker.uncopied == 2);
}

TEST(small_frames_are_copied) {
  const std::vector<std::size_t> lengths(8, 1000);
  Taker taker;
  receive(taker, stream_of(lengths), {1040, 2080});
  check(taker.payloads, lengths);
  CHECK(taker.spares == 0);
}

TEST(a_receiver_without_spares_gets_the_same) {
  const std::vector<std::size_t> lengths(8, long_enough);
  Taker taker;
  taker.exchanges = false;
  receive(taker, stream_of(lengths), {3040, 9000});
  check(taker.payloads, lengths);
}

TEST(frames_of_other_sizes_than_expected_come_right_wherever_the_stream_is_cut) {
  const std::vector<std::size_t> lengths{long_enough, long_enough, 0,    long_enough,     200, long_enough - 1,
                                         2048,        2048,        2048, long_enough + 1, 0,   long_enough};
  const Bytes stream = stream_of(lengths);
  for (std::size_t first = 1; first < stream.size(); first += 13) {
    for (const std::size_t second : {first + 1, first + wire::header_bytes, first + long_enough, first + 7000}) {
      Taker taker;
      receive(taker, stream,
              second < stream.size() ? std::vector<std::size_t>{first, second} : std::vector<std::size_t>{first});
      check(taker.payloads, lengths);
      taker.payloads.clear();
      CHECK(taker.pool.taken_bytes() == 0);
    }
  }
}

}  // namespace

RUN_TESTS()
