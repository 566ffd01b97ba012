// The least time after which a connection's kernel retransmits: the kernel's default, and far less from a loss until
// there has been none for a while.
//
// Only the timer finds a lost packet at the end of what was sent, and meanwhile everybody waits for it. Between
// machines of one room the kernel's minimum, 200 ms, is a thousand round trips. But the kernel also uses this time to
// tell when a connection is idle. With a short one, a sender that waits for answers seems idle all the time: the kernel
// shrinks its congestion window, and segments go out in pieces. docs/decisions/lost-packets.md has both in figures.
//
// The socket option is Linux' own and new (6.18). Older kernels keep their minimum.
#pragma once

#include <cstdint>

#include "protocol/machine.h"

struct tcp_info;

namespace shoal::tcp {

// The socket option of a retransmission timer's least time, in microseconds: TCP_RTO_MIN_US, which older headers lack.
inline constexpr int least_timer_option = 45;

class RetransmissionTimer {
 public:
  explicit RetransmissionTimer(int socket);

  // Sets the timer by what the kernel says of the connection. Called at every look().
  void heed(const tcp_info& info, Time now);

 private:
  void wait_at_least(int microseconds);

  const int socket_;
  const int usual_;           // the kernel's own minimum, in microseconds; 0: it has no such option
  int present_;               // the present minimum
  std::uint32_t losses_ = 0;  // as of the last call of heed()
  Time loss_at_ = 0;          // when heed() last saw one; 0: never
};

}  // namespace shoal::tcp
