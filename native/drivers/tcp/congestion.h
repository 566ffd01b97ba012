// Which congestion control a connection uses while the job competes for its share: the host's own, in place of reno, if
// it was given that before it was a link (src/shoal/net/congestion.py). docs/decisions/congestion.md.
//
// Any other is somebody's choice, and stays. The kernel's word counts: what it refuses stays as it is.
#pragma once

#include <string>

namespace shoal::tcp {

class Congestion {
 public:
  explicit Congestion(int socket) : socket_(socket) {}

  void compete(bool on);

 private:
  const int socket_;
  bool instead_ = false;  // it has the host's own instead of reno
};

// The name of the socket's congestion control; empty for sockets that are not TCP.
std::string congestion_control_of(int socket);

}  // namespace shoal::tcp
