// Watches gates until each has opened, or will never open.
//
// A thread of its own, which an accelerator cannot wake: it looks again and again for a short time, then sleeps for as
// short a time between looks, and only while a gate is closed. Whether a gate can still open is asked by another
// thread: the accelerator's library may keep that waiting for what only an open gate ends. Every method may be called
// by any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "drivers/common/gate.h"

namespace shoal::engine {

class GateWatch {
 public:
  // Called on the watch's thread. `problem`: why it will never open; empty: it is open.
  using Told = std::function<void(const std::string& problem)>;

  GateWatch() = default;
  GateWatch(const GateWatch&) = delete;
  GateWatch& operator=(const GateWatch&) = delete;
  ~GateWatch() { close(); }

  // Before add(): makes the threads, if there are none. Throws std::system_error if the system has none.
  void start();
  // `told` is called once; after close() only with `also_at_end`, which keeps close() waiting for that for a while.
  // False: it was closed before.
  bool add(Gate gate, Told told, bool also_at_end = false);
  // Waits for a call that has begun. Not to be called by two threads at once.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  struct Watched {
    Gate gate;
    Told told;
    bool also_at_end;
    std::uint64_t number;
    Clock::time_point asked_at;  // what is wrong with it
  };

  // One question at a time, and its answer. Outlives the watch where a question is never answered.
  struct Asking {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<std::string()> question;  // guarded by mutex; null: none
    std::uint64_t number = 0;               // guarded by mutex; whose it is
    std::string answer;                     // guarded by mutex
    bool is_answered = false;               // guarded by mutex
    bool is_over = false;                   // guarded by mutex
  };

  void run();
  static void answer(Asking& asking);
  // Tells of those that are open, and takes them from `closed`. Whether there were any.
  static bool tell_of_open(std::vector<Watched>& closed);
  // The same of those that will never open, as far as that is known; asks about others.
  void tell_of_broken(std::vector<Watched>& closed, Clock::time_point now);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> added_;      // guarded by mutex_
  std::uint64_t count_ = 0;         // guarded by mutex_
  bool closing_ = false;            // guarded by mutex_
  std::thread thread_;              // guarded by mutex_
  std::shared_ptr<Asking> asking_;  // set before the thread starts
};

}  // namespace shoal::engine
