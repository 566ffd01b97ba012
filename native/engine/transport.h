// The driver that carries the machines of this process: the only file of the engine that names one.
//
// A driver for the engine has these names and keeps the contract of protocol/machine.h. Its loop takes over connections
// of the kinds that it knows (drivers/common/connection.h).
#pragma once

#include "drivers/tcp/hosted_server.h"
#include "drivers/tcp/loop.h"

namespace shoal::engine {

using tcp::HostedServer;
using tcp::LinkOptions;
using tcp::Loop;
using tcp::OnLoop;
using tcp::pool_bytes;

}  // namespace shoal::engine
