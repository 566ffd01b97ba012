// The sums and the processor: every instruction set that it has is used, and the modes that a caller's thread has set
// (rounding, small numbers flushed to zero) neither change a sum nor are changed by it.
#include "reduce/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/processor.h"
#include "check.h"
#include "reduce/backends.h"

namespace {

using shoal::DType;
using shoal::Operator;
using shoal::reduction::Backend;

#if defined(__x86_64__)
constexpr unsigned int flush_to_zero = 0x8040;  // of results and of inputs
unsigned int float_control() { return _mm_getcsr(); }
void set_float_control(unsigned int value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
constexpr unsigned int flush_to_zero = 1U << 24;
unsigned int float_control() {
  std::uint64_t value = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<unsigned int>(value);
}
void set_float_control(unsigned int value) { __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{value})); }
#endif

// The words after "flags" (x86) or "Features" (ARM) of /proc/cpuinfo.
std::set<std::string> processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags") || line.starts_with("Features")) {
      std::istringstream words(line.substr(line.find(':') + 1));
      return {std::istream_iterator<std::string>(words), {}};
    }
  }
  return {};
}

}  // namespace

TEST(a_callers_rounding_is_not_the_sums_and_is_its_own_again_afterwards) {
  const std::array<float, 2> values{1.0F, 0x1p-30F};
  const std::array<const std::byte*, 2> sources{reinterpret_cast<const std::byte*>(&values[0]),
                                                reinterpret_cast<const std::byte*>(&values[1])};
  float sum = 0;
  CHECK_EQ(std::fesetround(FE_UPWARD), 0);
  shoal::reduce(reinterpret_cast<std::byte*>(&sum), sources, 1, DType::float32, Operator::sum, 1);
  const int rounding = std::fegetround();
  CHECK_EQ(std::fesetround(FE_TONEAREST), 0);
  CHECK_EQ(sum, 1.0F);
  CHECK_EQ(rounding, FE_UPWARD);
}

#if defined(__x86_64__) || defined(__aarch64__)
TEST(small_numbers_are_summed_where_the_caller_flushes_them_to_zero) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const std::array<const std::byte*, 2> sources{reinterpret_cast<const std::byte*>(&smallest),
                                                reinterpret_cast<const std::byte*>(&smallest)};
  std::uint32_t sum = 0;
  const unsigned int before = float_control();
  set_float_control(before | flush_to_zero);
  shoal::reduce(reinterpret_cast<std::byte*>(&sum), sources, 1, DType::float32, Operator::sum, 1);
  const unsigned int after = float_control();
  set_float_control(before);
  CHECK_EQ(sum, 2U);  // the bits of twice the smallest number
  CHECK_EQ(after & flush_to_zero, flush_to_zero);
}
#endif

// What a compiler, or its own way to ask the processor, leaves out would only show as slowness.
TEST(every_instruction_set_that_linux_reports_is_used) {
  const std::set<std::string> flags = processor_flags();
  std::vector<std::string> expected;
#if defined(__x86_64__)
  const auto all = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return flags.contains(name); });
  };
  CHECK(!flags.empty());
  const bool avx2 = all({"avx2", "f16c"});
  if (avx2 && all({"avx512f", "avx512bw", "avx512dq", "avx512vl"})) {
    expected.push_back("avx512");
  }
  if (avx2) {
    expected.push_back("avx2");
  }
  CHECK_EQ(shoal::processor().crc32c, flags.contains("sse4_2"));
#elif defined(__aarch64__)
  expected.push_back("neon");
#endif
  expected.push_back("portable");
  std::vector<std::string> usable;
  for (const Backend* backend : shoal::reduction::usable_backends()) {
    usable.push_back(backend->name);
  }
  CHECK(usable == expected);
}

TEST(the_fastest_usable_backend_is_chosen) {
  const auto backends = shoal::reduction::usable_backends();
  for (const Backend* backend : backends) {
    std::printf("  %s\n", backend->name);
  }
  CHECK_EQ(std::string(shoal::reduce_backend()), backends.front()->name);
  CHECK_EQ(std::string(backends.back()->name), "portable");
}

RUN_TESTS()
