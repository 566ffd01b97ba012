#include "tensorflow/tensors.h"

namespace shoal::tensorflow {

DType dtype_of(DataType type) {
  switch (type) {
    case 1:
      return DType::float32;
    case 2:
      return DType::float64;
    case 3:
      return DType::int32;
    case 4:
      return DType::uint8;
    case 5:
      return DType::int16;
    case 6:
      return DType::int8;
    case int64_type:
      return DType::int64;
    case 10:
      return DType::boolean;
    case 14:
      return DType::bfloat16;
    case 17:
      return DType::uint16;
    case 19:
      return DType::float16;
    case 22:
      return DType::uint32;
    case 23:
      return DType::uint64;
    default:
      return DType::none;
  }
}

}  // namespace shoal::tensorflow
