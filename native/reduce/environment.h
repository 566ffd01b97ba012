// The floating-point environment in which sums are made: that with which programs begin, whatever a thread has set or
// inherited. Rounding, and the flushing of small numbers to zero (torch.set_flush_denormal), would change results.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace shoal::reduction {

// While it lives. The caller's is back afterwards, with the exceptions that it had seen.
class DefaultEnvironment {
 public:
#if defined(__x86_64__)
  // The old registers of the x87, which the C library would save too, take longer than a small sum, and no sum of ours
  // uses them.
  DefaultEnvironment() : callers_(_mm_getcsr()) { _mm_setcsr(initial); }
  ~DefaultEnvironment() { _mm_setcsr(callers_); }
#else
  DefaultEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultEnvironment() { std::fesetenv(&callers_); }
#endif
  DefaultEnvironment(const DefaultEnvironment&) = delete;
  DefaultEnvironment& operator=(const DefaultEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned int initial = 0x1f80;
  unsigned int callers_;
#else
  std::fenv_t callers_{};
#endif
};

}  // namespace shoal::reduction
