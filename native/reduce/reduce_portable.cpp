// The sums for whatever the compiler targets by default: any processor, x86's SSE2 and ARM's NEON included.
#include "reduce/kernels.h"

namespace shoal::reduction {

constinit const Backend portable_backend{"portable", reduce_call};

}  // namespace shoal::reduction
