// The sums for x86 processors with AVX-512 (F, BW, DQ and VL). CMakeLists.txt compiles this file with the instruction
// set's options; without them it holds no kernels.
#include "reduce/backends.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "reduce/kernels.h"

namespace shoal::reduction {
constinit const Backend avx512_backend{"avx512", reduce_call};
}

#else

namespace shoal::reduction {
constinit const Backend avx512_backend{"avx512", nullptr};
}

#endif
