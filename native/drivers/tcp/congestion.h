// Which congestion control a connection uses while the job competes: the host's own instead of reno. Connections have
// reno since before they became links (src/shoal/net/congestion.py). docs/decisions/congestion.md.
//
// A connection with any other control keeps it: somebody has chosen that. Where the kernel refuses, nothing changes.
#pragma once

#include <string>

namespace shoal::tcp {

class Congestion {
 public:
  explicit Congestion(int socket) : socket_(socket) {}

  void compete(bool on);

 private:
  const int socket_;
  bool instead_ = false;  // it uses the host's own instead of reno
};

// The name of the socket's congestion control; empty for sockets that are not TCP.
std::string congestion_control_of(int socket);

}  // namespace shoal::tcp
