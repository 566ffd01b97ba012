// Which instructions this processor has beyond those that the compiler was told to use.
#pragma once

namespace shoal {

struct Processor {
  bool avx2 = false;    // with F16C, and the operating system saves the registers
  bool avx512 = false;  // avx2, with AVX-512 F, BW, DQ and VL, and the operating system saves those registers too
  bool crc32c = false;  // has CRC-32C's instructions: x86's of SSE4.2, ARM's of its CRC32 extension
};

// Determined once, and without __builtin_cpu_supports(): that of some toolchains (Zig's) says no to everything.
const Processor& processor();

}  // namespace shoal
