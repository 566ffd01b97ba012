// The floating-point environment of all sums: the default one, whatever the calling thread has set or inherited.
// Another rounding mode, or flushing subnormals to zero (torch.set_flush_denormal), would change results.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace shoal::reduction {

// Sets the default environment while it lives, then restores the caller's, with the exceptions that were raised there.
class DefaultEnvironment {
 public:
#if defined(__x86_64__)
  // MXCSR alone: saving the x87 registers too, as the C library does, takes longer than a small sum, and no sum uses
  // them.
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
