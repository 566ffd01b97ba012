#include "base/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace shoal {

namespace {

#if defined(__x86_64__)
// Which registers the operating system saves: bits 1 and 2 are those of AVX, 5 to 7 those that AVX-512 adds.
unsigned int saved_registers() {
  unsigned int low = 0;
  unsigned int high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Processor ask() {
  constexpr unsigned int saves_registers = 1U << 27;  // leaf 1, ECX: xgetbv is there
  constexpr unsigned int ymm = 0x06;
  constexpr unsigned int zmm = 0xe6;
  constexpr unsigned int avx512_parts =
      (1U << 16) | (1U << 17) | (1U << 30) | (1U << 31);  // leaf 7, EBX: F, DQ, BW, VL
  Processor found;
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int features = 0;
  unsigned int edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &features, &edx) == 0) {
    return found;
  }
  found.crc32c = (features & bit_SSE4_2) != 0;
  const unsigned int saved = (features & saves_registers) != 0 ? saved_registers() : 0;
  unsigned int extended = 0;
  unsigned int ecx = 0;
  if (__get_cpuid_count(7, 0, &eax, &extended, &ecx, &edx) != 0) {
    found.avx2 =
        (features & bit_AVX) != 0 && (features & bit_F16C) != 0 && (extended & bit_AVX2) != 0 && (saved & ymm) == ymm;
    found.avx512 = found.avx2 && (extended & avx512_parts) == avx512_parts && (saved & zmm) == zmm;
  }
  return found;
}
#elif defined(__aarch64__)
Processor ask() {
  Processor found;
  found.crc32c = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return found;
}
#else
Processor ask() { return {}; }
#endif

}  // namespace

const Processor& processor() {
  static const Processor found = ask();
  return found;
}

}  // namespace shoal
