// Threads that run what follows the end of an operation in a framework.
//
// What follows may run any of the framework's code, so it never runs on the engine's thread. It may even wait for other
// operations: a thread that begins to run something makes sure that another one waits for the next.
//
// Every method may be called by any thread. A child made by fork() has none of the threads, and waits for nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/completions.h"
#include "engine/operation.h"

namespace shoal::doors {

class Finishers {
 public:
  // What is to follow; called once.
  using Follow = std::function<void()>;

  Finishers() = default;
  Finishers(const Finishers&) = delete;
  Finishers& operator=(const Finishers&) = delete;

  // Throws std::system_error if there is no thread and the system has none.
  void prepare();
  // After prepare(): `follow` is called when the operation is done. The program may end before.
  void expect(engine::Operation& operation, Follow follow);
  // The program ends: what has not begun to follow does not.
  void close();

 private:
  void serve();
  void start_if_none_waits();

  Follow take(std::uint64_t token);

  const std::shared_ptr<engine::Completions> completions_ = std::make_shared<engine::Completions>();
  std::mutex mutex_;
  std::size_t waiting_ = 0;                             // threads; guarded by mutex_
  bool has_any_ = false;                                // guarded by mutex_
  std::unordered_map<std::uint64_t, Follow> expected_;  // by token; guarded by mutex_
  std::uint64_t last_token_ = 0;                        // guarded by mutex_
};

}  // namespace shoal::doors
