// Who this rank is in a group, as an operation of TensorFlow's: for what a function computes with that, which may run
// in a later job than it was traced in. It fails where this rank is not who the function was traced for.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "doors/table.h"
#include "tensorflow/call.h"
#include "tensorflow/operation.h"
#include "tensorflow/tensors.h"

namespace shoal::tensorflow {

namespace {

struct Wanted {
  std::string kind;  // of what is computed with it, and its name: for messages
  std::string name;
  std::int64_t group = 0;
  doors::ExpectedPlace expected;
};

void* create(TF_OpKernelConstruction* construction) {
  auto wanted = std::make_unique<Wanted>();
  const Status status;
  wanted->kind = text_of(construction, "kind", status);
  if (status.ok()) {
    wanted->name = text_of(construction, "tensor_name", status);
  }
  const auto read = [&](const char* attribute, std::int64_t& number) {
    if (status.ok()) {
      api().OpKernelConstruction_GetAttrInt64(construction, attribute, &number, status);
    }
  };
  read("group", wanted->group);
  read("expected_members", wanted->expected.members);
  read("expected_index", wanted->expected.index);
  if (!status.ok()) {
    api().OpKernelConstruction_Failure(construction, status);
  }
  return wanted.release();
}

void destroy(void* kernel) { delete static_cast<Wanted*>(kernel); }

void give(TF_OpKernelContext* context, int output, std::int64_t number, const Status& status) {
  const Tensor made(api().AllocateOutput(context, output, int64_type, nullptr, 0, sizeof number, status));
  if (status.ok()) {
    std::memcpy(made.data(), &number, sizeof number);
  }
}

void find(void* kernel, TF_OpKernelContext* context) {
  const Wanted& wanted = *static_cast<const Wanted*>(kernel);
  const Status status;
  doors::Place place;
  std::string why;
  if (core() == nullptr) {
    status.set(Error::failed_precondition, without_shoal);
  } else if (!core()->place(wanted.group, wanted.expected, &place, doors::sink_of(why))) {
    std::string what;
    core()->describe(wanted.kind.c_str(), wanted.name.data(), wanted.name.size(), doors::sink_of(what));
    status.set(Error::failed_precondition, what + ": " + why);
  } else {
    give(context, 0, place.members, status);
  }
  if (status.ok()) {
    give(context, 1, place.index, status);
  }
  if (!status.ok()) {
    api().OpKernelContext_Failure(context, status);
  }
}

void scalars(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const scalar = api().ShapeInferenceContextScalar(context);
  for (const int output : {0, 1}) {
    if (api().GetCode(status) == 0) {
      api().ShapeInferenceContextSetOutput(context, output, scalar, status);
    }
  }
  api().DeleteShapeHandle(scalar);
}

}  // namespace

const std::vector<Operation>& places() {
  static const auto* const all = new std::vector<Operation>{
      {"ShoalPlace",
       {"kind: string", "tensor_name: string", "group: int", "expected_members: int", "expected_index: int"},
       {},
       {"members: int64", "index: int64"},
       scalars,
       create,
       nullptr,
       find,
       destroy},
  };
  return *all;
}

}  // namespace shoal::tensorflow
