// The sums for 64-bit ARM processors. All of them have NEON, so the portable kernels are vectorised for it as well;
// these convert float16 with its instructions besides. Elsewhere this file holds no kernels.
#include "reduce/backends.h"

#if defined(__aarch64__)

#define SHOAL_REDUCE_NEON
#include "reduce/kernels.h"

namespace shoal::reduction {
constinit const Backend neon_backend{"neon", reduce_call};
}

#else

namespace shoal::reduction {
constinit const Backend neon_backend{"neon", nullptr};
}

#endif
