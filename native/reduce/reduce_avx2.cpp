// The sums for x86 processors with AVX2 and F16C. CMakeLists.txt compiles this file with the instruction set's
// options; without them it holds no kernels.
#include "reduce/backends.h"

#if defined(__AVX2__) && defined(__F16C__)

#include "reduce/kernels.h"

namespace shoal::reduction {
constinit const Backend avx2_backend{"avx2", reduce_call};
}

#else

namespace shoal::reduction {
constinit const Backend avx2_backend{"avx2", nullptr};
}

#endif
