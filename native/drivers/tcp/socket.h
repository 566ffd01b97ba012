// A connection as it is handed to the core: a stream socket, and its encryption if it has one.
#pragma once

#include <memory>
#include <utility>

#include "drivers/tcp/tls.h"
#include "os/descriptor.h"

namespace shoal::tcp {

struct Socket {
  Socket(os::Descriptor owned, std::shared_ptr<Tls> encryption = nullptr)
      : descriptor(std::move(owned)), tls(std::move(encryption)) {}
  // Takes ownership of the descriptor.
  Socket(int number, std::shared_ptr<Tls> encryption = nullptr)
      : Socket(os::Descriptor(number), std::move(encryption)) {}

  os::Descriptor descriptor;
  std::shared_ptr<Tls> tls;  // null: bytes travel as they are
};

}  // namespace shoal::tcp
