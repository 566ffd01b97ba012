#include "drivers/tcp/congestion.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "os/descriptor.h"

namespace shoal::tcp {

namespace {

constexpr std::size_t longest_name = 16;  // TCP_CA_NAME_MAX
constexpr std::string_view gentle = "reno";

// What a new connection of this host gets.
std::string hosts_own() {
  const os::Descriptor fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fresh ? congestion_control_of(fresh.number()) : std::string();
}

}  // namespace

std::string congestion_control_of(int socket) {
  std::array<char, longest_name> name{};
  socklen_t size = name.size();
  if (::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) {
    return {};
  }
  return {name.begin(), std::find(name.begin(), name.end(), '\0')};
}

void Congestion::compete(bool on) {
  if (on == instead_ || (on && congestion_control_of(socket_) != gentle)) {
    return;
  }
  const std::string wanted = on ? hosts_own() : std::string(gentle);
  if (::setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, wanted.data(), wanted.size()) == 0) {
    instead_ = on;
  }
}

}  // namespace shoal::tcp
