// The threads of this process that call Shoal, and what each of them waits for. When nothing moves, the other ranks
// have to know whether anything here can still call something (protocol/coordinator/circles.h).
//
// A thread is known from its first call until it ends. It is blocked while it waits without a limit for one operation;
// otherwise it may call something. A thread of Shoal's own that waits for callbacks is resting, and does not count: the
// callbacks that may come are counted instead.
//
// Every function may be called by any thread. A child made by fork() begins with no callers.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::engine {

// The calling thread calls something.
void note_call();

// While this lives, the calling thread waits for the operation of this handle.
class BlockedBy {
 public:
  explicit BlockedBy(std::uint64_t handle);
  BlockedBy(const BlockedBy&) = delete;
  BlockedBy& operator=(const BlockedBy&) = delete;
  ~BlockedBy();

 private:
  const std::uint64_t before_;
};

// While this lives, the calling thread, which waits, may run the program's code (signal handlers), and does not count
// as blocked. That does not raise Callers::changes.
class Awake {
 public:
  Awake();
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
  ~Awake();

 private:
  const std::uint64_t before_;
};

// While this lives, the calling thread waits for callbacks.
class Resting {
 public:
  Resting();
  Resting(const Resting&) = delete;
  Resting& operator=(const Resting&) = delete;
  ~Resting();
};

// So many more callbacks are to be called and have not been taken by a thread; negative: fewer.
void count_callbacks(std::int64_t more);

struct Callers {
  bool any = false;                    // some thread calls Shoal
  bool blocked = false;                // all such threads are blocked, and no callback is to be called
  std::uint64_t changes = 0;           // rises whenever one of the above is called
  std::vector<std::uint64_t> handles;  // which threads wait for
};
Callers look_at_callers();

// Their pthread_self(), with resting ones.
std::vector<std::uint64_t> threads_of_callers();

}  // namespace shoal::engine
