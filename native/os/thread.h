// Threads of Shoal's own, beside those of the program.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace shoal::os {

// While there is one, the calling thread has all signals blocked; a thread that it starts has them blocked for good.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// A thread that runs `run`, and handles no signals: they are for the program's threads. Throws std::system_error.
template <class Run>
std::thread start_thread(Run run) {
  const SignalsBlocked blocked;
  return std::thread(std::move(run));
}

}  // namespace shoal::os
