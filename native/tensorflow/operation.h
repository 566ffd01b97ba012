// An operation as TensorFlow is told of it.
#pragma once

#include <vector>

#include "tensorflow/api.h"

namespace shoal::tensorflow {

struct Operation {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  ShapeFunction shape;
  CreateFunction create;
  ComputeFunction compute;  // asynchronous; or null, and
  void (*compute_at_once)(void* kernel, TF_OpKernelContext*);
  DestroyFunction destroy;
};

// collectives.cpp, gradients.cpp, place.cpp
const std::vector<Operation>& collectives();
const std::vector<Operation>& gradients();
const std::vector<Operation>& places();

// xla.cpp: for programs that XLA compiles. Why there is none of it; empty: there is.
const char* enable_xla();

}  // namespace shoal::tensorflow
