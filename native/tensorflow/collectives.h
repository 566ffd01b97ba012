// The collective operations as TensorFlow's: a kernel and a shape for each.
#pragma once

#include <string>
#include <vector>

#include "tensorflow/api.h"

namespace shoal::tensorflow {

struct Operation {
  const char* name;
  std::vector<const char*> attributes;  // beside T, tensor_name and group
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  ShapeFunction shape;
  ComputeFunction compute;
};

const std::vector<Operation>& collectives();

}  // namespace shoal::tensorflow
