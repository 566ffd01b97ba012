// Which congestion control a connection has while it competes: real sockets.
#include "drivers/tcp/congestion.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <string>
#include <utility>

#include "os/descriptor.h"
#include "tests/tcp_sides.h"

namespace {

using namespace shoal;
using namespace shoal::tests;
using tcp::Congestion;
using tcp::congestion_control_of;

struct Connection {
  std::pair<int, int> sockets = tcp_pair();
  os::Descriptor one{sockets.first};
  os::Descriptor other{sockets.second};
  std::string hosts_own = congestion_control_of(one.number());
};

bool give(const Connection& link, const std::string& name) {
  return ::setsockopt(link.one.number(), IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size()) == 0;
}

TEST(the_hosts_own_while_it_insists_and_reno_before_and_after) {
  const Connection link;
  CHECK(give(link, "reno"));  // every kernel has it, and lets everyone use it
  Congestion congestion(link.one.number());
  for (const bool on : {false, true, true, false, false, true, false}) {
    congestion.compete(on);
    CHECK(congestion_control_of(link.one.number()) == (on ? link.hosts_own : "reno"));
  }
}

TEST(what_somebody_else_has_chosen_stays) {
  std::ifstream allowed("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  for (std::string name; allowed >> name;) {
    const Connection link;
    if (name == "reno" || !give(link, name)) {
      continue;
    }
    Congestion congestion(link.one.number());
    for (const bool on : {true, false}) {
      congestion.compete(on);
      CHECK(congestion_control_of(link.one.number()) == name);
    }
  }
}

TEST(sockets_that_are_not_tcp_stay_as_they_are) {
  std::array<int, 2> sockets{};
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
  const os::Descriptor one(sockets[0]);
  const os::Descriptor other(sockets[1]);
  Congestion congestion(one.number());
  congestion.compete(true);
  congestion.compete(false);
  CHECK(congestion_control_of(one.number()).empty());
}

}  // namespace

RUN_TESTS()
