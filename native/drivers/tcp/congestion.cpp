#include "drivers/tcp/congestion.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "os/descriptor.h"

namespace shoal::tcp {

namespace {

constexpr std::size_t longest_name = 16;  // TCP_CA_NAME_MAX

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

void Congestion::insist(bool on) {
  if (std::exchange(insistent_, on) == on) {
    return;
  }
  if (on) {
    usual_ = congestion_control_of(socket_);
  }
  const std::string wanted = on ? hosts_own() : usual_;
  if (!wanted.empty()) {
    static_cast<void>(::setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, wanted.data(), wanted.size()));
  }
}

}  // namespace shoal::tcp
