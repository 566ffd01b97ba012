// How much of what is queued a link sends before it is the others' turn.
#include "drivers/tcp/link.h"

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "os/descriptor.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;
using tcp::Link;

constexpr std::size_t kib = 1024;

// A link whose other end takes whatever it is sent, up to a megabyte.
struct Sender {
  std::pair<int, int> sockets = roomy_pair();
  os::Descriptor other{sockets.second};
  Link link{1, tcp::Socket(os::Descriptor(sockets.first)), {}};
  tcp::LinkCounters counters;
  std::vector<Token> sent;
  Token last = 0;

  static std::pair<int, int> roomy_pair() {
    const std::pair<int, int> pair = local_pair();
    const int size = 1 << 20;
    CHECK(::setsockopt(pair.first, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    return pair;
  }

  void queue(int frames, std::size_t bytes) {
    for (int i = 0; i < frames; ++i) {
      wire::Header header{.type = wire::Type::data};
      header.length = static_cast<std::uint32_t>(bytes);
      link.queue(header, Bytes(bytes), {}, ++last);
    }
  }

  // How many frames have left in each turn until none is queued.
  std::vector<std::size_t> turns(Time now) {
    std::vector<std::size_t> counts;
    Link::Progress progress = Link::Progress::more;
    while (progress == Link::Progress::more) {
      sent.clear();
      progress = link.flush(sent, counters, now);
      counts.push_back(sent.size());
    }
    CHECK(progress == Link::Progress::idle);
    return counts;
  }
};

TEST(after_a_pause_the_first_turns_are_short_and_of_whole_frames) {
  Sender sender;
  sender.queue(7, 30 * kib);
  CHECK(sender.turns(second) == (std::vector<std::size_t>{1, 1, 1, 1, 3}));
}

TEST(two_frames_of_16_kib_are_a_short_turn) {
  Sender sender;
  sender.queue(8, 16 * kib);
  CHECK(sender.turns(second) == (std::vector<std::size_t>{2, 2, 2, 2}));
}

TEST(small_frames_leave_together_in_short_turns_too) {
  Sender sender;
  sender.queue(60, kib);
  const std::vector<std::size_t> turns = sender.turns(second);
  CHECK(turns.size() == 4);
  CHECK(turns.front() >= 15 && turns.front() <= 17);
}

TEST(a_link_that_has_sent_a_moment_ago_sends_all_there_is) {
  Sender sender;
  sender.queue(4, 30 * kib);
  CHECK(sender.turns(second) == (std::vector<std::size_t>{1, 1, 1, 1}));
  sender.queue(5, 30 * kib);
  CHECK(sender.turns(second + second / 1000) == (std::vector<std::size_t>{5}));
}

TEST(each_pause_makes_turns_short_again) {
  Sender sender;
  sender.queue(4, 30 * kib);
  static_cast<void>(sender.turns(second));
  sender.queue(5, 30 * kib);
  CHECK(sender.turns(second + second / 100) == (std::vector<std::size_t>{1, 1, 1, 1, 1}));
}

}  // namespace

RUN_TESTS()
