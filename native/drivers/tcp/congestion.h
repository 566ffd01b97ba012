// Which congestion control a connection uses while the job insists on its share: the host's own, in place of the
// gentler one that it may have been given before it was a link (src/shoal/congestion.py). docs/decisions/congestion.md.
//
// The kernel's word counts: what it refuses stays as it is.
#pragma once

#include <string>

namespace shoal::tcp {

class Congestion {
 public:
  explicit Congestion(int socket) : socket_(socket) {}

  void insist(bool on);

 private:
  const int socket_;
  bool insistent_ = false;
  std::string usual_;  // while it insists: what it had before
};

// The name of the socket's congestion control; empty for sockets that are not TCP.
std::string congestion_control_of(int socket);

}  // namespace shoal::tcp
