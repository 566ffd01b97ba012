// The threads of this process that call Shoal, and what each of them waits for: whether anything here can still call
// something is what the other ranks have to know when nothing moves (protocol/coordinator/circles.h).
//
// A thread is known from its first call until it ends. It is blocked while it waits without a limit for one operation;
// otherwise it may call something. A thread of Shoal's own that waits for callbacks to come rests, and counts for
// nothing: the callbacks that may come are counted instead.
//
// Every function may be called by any thread. A child made by fork() begins anew.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::engine {

// The calling thread calls something.
void note_call();

// The calling thread waits for the operation of this handle, as long as this lives.
class BlockedBy {
 public:
  explicit BlockedBy(std::uint64_t handle);
  BlockedBy(const BlockedBy&) = delete;
  BlockedBy& operator=(const BlockedBy&) = delete;
  ~BlockedBy();

 private:
  const std::uint64_t before_;
};

// The calling thread, which waits, may run what is the program's (handlers of signals) as long as this lives: it is not
// blocked meanwhile. By itself that is no change.
class Awake {
 public:
  Awake();
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
  ~Awake();

 private:
  const std::uint64_t before_;
};

// The calling thread waits for callbacks, as long as this lives.
class Resting {
 public:
  Resting();
  Resting(const Resting&) = delete;
  Resting& operator=(const Resting&) = delete;
  ~Resting();
};

// Callbacks that are to be called, and that no thread has taken yet: so many more.
void count_callbacks(std::int64_t more);

struct Callers {
  bool any = false;                    // there are such threads
  bool blocked = false;                // all of them are, and there is no callback to be called
  std::uint64_t changes = 0;           // rises whenever one of the above is called
  std::vector<std::uint64_t> handles;  // that threads are blocked by
};
Callers look_at_callers();

// As pthread_self() has them, resting ones too.
std::vector<std::uint64_t> threads_of_callers();

}  // namespace shoal::engine
