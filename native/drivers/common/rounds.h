// The rounds of a loop, for threads that wait for what comes of them.
#pragma once

#include <chrono>
#include <functional>

namespace shoal {

class Rounds {
 public:
  virtual ~Rounds() = default;

  // The calling thread does the loop's rounds, instead of the loop's own, until `enough`, or for `longest`; or returns
  // earlier, or at once: what is waited for comes in any case. By any thread that holds no lock which a round may need.
  virtual void help(const std::function<bool()>& enough, std::chrono::nanoseconds longest) = 0;

  // Something is to come for which no thread waits: the loop's own is not to rest until the next one helps.
  virtual void leave_to_the_loop() = 0;
};

}  // namespace shoal
