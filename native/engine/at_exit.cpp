#include "engine/at_exit.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "os/descriptor.h"

namespace shoal::engine {

namespace {

using std::chrono::milliseconds;

struct Ending {
  Engine* engine;
  std::string reason;
  std::uint64_t generation;
};

void say_goodbye(Engine& engine) {
  engine.leave();
  while (!engine.left() || engine.serves()) {
    const std::optional<Event> event = engine.next_event(milliseconds(engine.left() ? 1000 : 5));
    if (!event.has_value()) {
      continue;
    }
    if (event->kind == "ended") {
      break;
    }
    if (event->kind == "connect") {
      engine.peer_unreachable(static_cast<std::uint32_t>(event->index),
                              "its program has ended with operations still open");
    } else if (event->kind == "connect_server") {
      engine.server_unreachable(static_cast<std::uint32_t>(event->index), event->attempt);
    } else if (event->kind == "warning") {
      std::fprintf(stderr, "shoal: %s\n", event->text.c_str());
    }
  }
  engine.close();
}

void on_process_exit(int status, void* argument) {
  const Ending& ending = *static_cast<Ending*>(argument);
  if (ending.generation != os::fork_generation()) {
    return;
  }
  try {
    if (status == 0) {
      say_goodbye(*ending.engine);
    } else if (ending.reason.empty()) {
      ending.engine->abort("its program ended with exit code " + std::to_string(status));
    } else {
      ending.engine->abort(ending.reason);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal: no goodbye could be said: %s\n", error.what());
  }
}

}  // namespace

void finish_at_exit(Engine& engine, std::string reason) {
  // Lives as long as the process.
  auto* ending = new Ending{&engine, std::move(reason), os::fork_generation()};
  ::on_exit(on_process_exit, ending);
}

}  // namespace shoal::engine
