#include "base/types.h"

namespace shoal {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
      return 1;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
    case DType::uint16:
      return 2;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
    case DType::none:
      break;
  }
  return 0;
}

bool is_floating(DType dtype) { return dtype >= DType::float32 && dtype <= DType::bfloat16; }

bool is_gather(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::all_to_all;
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::none:
      return "none";
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int8:
      return "int8";
    case DType::int16:
      return "int16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::uint16:
      return "uint16";
    case DType::uint32:
      return "uint32";
    case DType::uint64:
      return "uint64";
    case DType::boolean:
      return "bool";
  }
  return "an unknown dtype";
}

const char* name_of(Operator op) {
  switch (op) {
    case Operator::none:
      return "none";
    case Operator::sum:
      return "sum";
    case Operator::mean:
      return "mean";
    case Operator::min:
      return "min";
    case Operator::max:
      return "max";
    case Operator::product:
      return "product";
  }
  return "an unknown operator";
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::none:
      return "none";
    case Collective::all_reduce:
      return "allreduce";
    case Collective::reduce_scatter:
      return "reducescatter";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_gather:
      return "allgather";
    case Collective::all_to_all:
      return "alltoall";
    case Collective::barrier:
      return "barrier";
  }
  return "an unknown collective";
}

}  // namespace shoal
