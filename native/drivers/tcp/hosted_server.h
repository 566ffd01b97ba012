// A server machine on a loop, with its pool and its world: in a rank's process or in a dedicated server.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "drivers/tcp/loop.h"
#include "protocol/job.h"
#include "protocol/server/server.h"

namespace shoal::tcp {

// How many bytes of freed segments a machine's pool keeps for reuse.
inline constexpr std::size_t pool_bytes = 64 * 1024 * 1024;

// The loop must outlive it, and forget the machine (Loop::remove) before it goes.
struct HostedServer {
  HostedServer(const JobConfig& config, std::uint32_t index, Loop& loop)
      : pool(pool_bytes), world(loop), machine(config, index, world, pool) {
    world.bind(machine);
    loop.add(machine);
  }

  BufferPool pool;
  ServerOnLoop world;
  Server machine;
};

}  // namespace shoal::tcp
