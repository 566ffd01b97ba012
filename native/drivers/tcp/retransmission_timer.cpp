#include "drivers/tcp/retransmission_timer.h"

#include <linux/tcp.h>  // knows more of tcp_info than netinet/tcp.h
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace shoal::tcp {

namespace {

// Where packets are lost: so long, but two round trips behind a queue that is full, where waiting for an answer would
// else be taken for idleness.
constexpr int shortest_us = 5000;
constexpr int round_trips = 2;

// Without a loss, before it is the kernel's own choice again.
constexpr Time memory = 10 * second;

// Sockets that are not TCP (socket pairs in tests) have no such option either.
int usual_least(int socket) {
  int microseconds = 0;
  socklen_t size = sizeof microseconds;
  return ::getsockopt(socket, IPPROTO_TCP, least_timer_option, &microseconds, &size) == 0 ? microseconds : 0;
}

}  // namespace

RetransmissionTimer::RetransmissionTimer(int socket) : socket_(socket), usual_(usual_least(socket)), present_(usual_) {}

void RetransmissionTimer::heed(const tcp_info& info, Time now) {
  // What the other side has then had twice was only late: its process, or ours, had to wait for a processor.
  const std::uint32_t losses = info.tcpi_total_retrans - std::min(info.tcpi_dsack_dups, info.tcpi_total_retrans);
  if (losses > losses_) {
    loss_at_ = now;
  }
  losses_ = losses;
  const bool lossy = loss_at_ != 0 && now - loss_at_ < memory;
  const int wanted = round_trips * static_cast<int>(std::min(info.tcpi_rtt, std::uint32_t{1} << 24U));
  wait_at_least(lossy ? std::min(std::max(wanted, shortest_us), usual_) : usual_);
}

void RetransmissionTimer::wait_at_least(int microseconds) {
  if (microseconds == present_) {
    return;
  }
  present_ = microseconds;
  static_cast<void>(::setsockopt(socket_, IPPROTO_TCP, least_timer_option, &microseconds, sizeof microseconds));
}

}  // namespace shoal::tcp
