// When a connection's kernel is told to wait less than it would, and when no longer: real sockets, losses made up.
#include "drivers/tcp/retransmission_timer.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <optional>
#include <utility>

#include "os/descriptor.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;
using tcp::RetransmissionTimer;

// Of the kernel's clock, the slowest there is: what it takes a time for may be off by one.
constexpr int tick_us = 10000;

// Nothing where the kernel does not say: before Linux 6.18.
std::optional<int> least(int socket) {
  int microseconds = 0;
  socklen_t size = sizeof microseconds;
  return ::getsockopt(socket, IPPROTO_TCP, tcp::least_timer_option, &microseconds, &size) == 0
             ? std::optional(microseconds)
             : std::nullopt;
}

struct Connection {
  std::pair<int, int> sockets = tcp_pair();
  os::Descriptor one{sockets.first};
  os::Descriptor other{sockets.second};
  std::optional<int> usual = least(one.number());
  RetransmissionTimer timer{one.number()};

  // What the kernel waits at least from then on; what it usually does where it cannot be told.
  int after(unsigned retransmissions, unsigned round_trip_us, Time now, unsigned had_twice = 0) {
    tcp_info info{};
    info.tcpi_total_retrans = retransmissions;
    info.tcpi_dsack_dups = had_twice;
    info.tcpi_rtt = round_trip_us;
    timer.heed(info, now);
    return least(one.number()).value_or(0);
  }
};

TEST(without_losses_the_kernel_waits_as_long_as_it_likes) {
  Connection link;
  CHECK(link.after(0, 100, second) == link.usual.value_or(0));
  CHECK(link.after(0, 100, 100 * second) == link.usual.value_or(0));
}

TEST(from_a_loss_on_it_waits_little_until_there_has_been_none_for_a_while) {
  Connection link;
  if (!link.usual) {
    std::puts("this kernel cannot be told");
    return;
  }
  CHECK(link.after(1, 100, second) <= 5000 + tick_us);
  CHECK(link.after(1, 100, 10 * second) <= 5000 + tick_us);
  CHECK(link.after(1, 100, 11 * second) == *link.usual);
  CHECK(link.after(2, 100, 12 * second) <= 5000 + tick_us);
}

TEST(behind_a_full_queue_it_waits_two_round_trips_and_never_longer_than_it_would) {
  Connection link;
  if (!link.usual) {
    std::puts("this kernel cannot be told");
    return;
  }
  const int behind = link.after(1, 50000, second);
  CHECK(behind >= 100000 - tick_us && behind <= 100000 + tick_us);
  CHECK(link.after(1, 5000000, 2 * second) == *link.usual);
}

TEST(what_was_sent_again_for_nothing_is_no_loss) {
  Connection link;
  if (!link.usual) {
    std::puts("this kernel cannot be told");
    return;
  }
  CHECK(link.after(3, 100, second, 3) == *link.usual);
  CHECK(link.after(4, 100, 2 * second, 4) == *link.usual);
  CHECK(link.after(5, 100, 3 * second, 4) <= 5000 + tick_us);
}

TEST(what_is_not_tcp_is_left_alone) {
  const std::pair<int, int> sockets = local_pair();
  const os::Descriptor one{sockets.first};
  const os::Descriptor other{sockets.second};
  RetransmissionTimer timer{one.number()};
  tcp_info info{};
  info.tcpi_total_retrans = 1;
  timer.heed(info, second);
  CHECK(!least(one.number()));
}

}  // namespace

RUN_TESTS()
