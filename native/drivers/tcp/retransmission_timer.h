// How long a connection's kernel waits before it takes what is unanswered for lost: as long as it likes, and far less
// from the first loss until there has been none for a while.
//
// A lost packet at the end of what was sent is known only by a timer, and everybody waits for what it carried. Between
// machines of one room the kernel's least, 200 ms, is a thousand round trips. But the same time also tells the kernel
// when a connection is idle, and one whose sender waits for answers then seems idle all the time: the kernel gives it
// less and less of a window, and segments go out in pieces. docs/decisions/lost-packets.md has both in figures.
//
// The option is Linux' own and new (6.18 has it). Older kernels keep their least.
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

  // To be called now and then, with what the kernel says of the connection.
  void heed(const tcp_info& info, Time now);

 private:
  void wait_at_least(int microseconds);

  const int socket_;
  const int usual_;  // what the kernel waits at least by itself, in microseconds; 0: it does not let itself be told
  int present_;      // what it waits at least now
  std::uint32_t losses_ = 0;  // until it was last asked
  Time loss_at_ = 0;          // when it was last heard of one; 0: never
};

}  // namespace shoal::tcp
