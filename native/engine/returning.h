// The output of an operation that an accelerator takes back by itself when the gate is passed.
#pragma once

#include <cstddef>

#include "base/types.h"
#include "drivers/common/gate.h"

namespace shoal::engine {

struct Returning {
  Gate gate;
  std::byte* output = nullptr;  // null: nothing is known of it
  std::size_t bytes = 0;
  DType dtype = DType::none;

  // The operation has ended. Whoever goes on without having asked how finds NaN where it has failed and the dtype has
  // that, else zeros: nothing that is somebody else's. Not before the gate is open: until then the input may be on its
  // way to the same memory.
  void pass(bool well) const;

 private:
  void fill() const;
};

}  // namespace shoal::engine
