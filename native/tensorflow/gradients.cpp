// The gradients of a step as operations of TensorFlow's (doors/pass.h): one that begins, one for each gradient that is
// ready, and one that ends with the averages.
//
// None of them waits for another gradient in one of TensorFlow's threads or operations: where a step breaks off, some
// of them never run, and the others could not end. That it has broken off shows when TensorFlow lets go of what the
// first one gave.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "doors/table.h"
#include "tensorflow/call.h"
#include "tensorflow/done.h"
#include "tensorflow/operation.h"
#include "tensorflow/tensors.h"

namespace shoal::tensorflow {

namespace {

// --- A pass, as a tensor that has it ---

// TensorFlow copies what has less.
constexpr std::size_t alignment = 64;

struct alignas(alignment) HeldPass {
  void* pass = nullptr;
};
static_assert(sizeof(void*) == sizeof(std::int64_t));

void* pass_at(const std::byte* data) {
  void* pass = nullptr;
  std::memcpy(reinterpret_cast<std::byte*>(&pass), data, sizeof pass);
  return pass;
}

void drop(void* data, std::size_t, void*) {
  const std::unique_ptr<HeldPass> held(static_cast<HeldPass*>(data));
  core()->let_go_of_pass(held->pass, true);
}

Tensor tensor_of(void* pass) {
  auto* const held = new HeldPass{pass};
  return Tensor(api().NewTensor(int64_type, nullptr, 0, held, sizeof held->pass, drop, nullptr));
}

void fail(TF_OpKernelContext* context, Error error, const std::string& why) {
  const Status status;
  status.set(error, "shoal: " + why);
  api().OpKernelContext_Failure(context, status);
}

// --- Begins ---

struct Step {
  std::string name;
  std::int64_t averager = 0;
};

void* create_begin(TF_OpKernelConstruction* construction) {
  auto step = std::make_unique<Step>();
  const Status status;
  step->name = text_of(construction, "tensor_name", status);
  if (status.ok()) {
    api().OpKernelConstruction_GetAttrInt64(construction, "averager", &step->averager, status);
  }
  if (!status.ok()) {
    api().OpKernelConstruction_Failure(construction, status);
  }
  return step.release();
}

void destroy_step(void* kernel) { delete static_cast<Step*>(kernel); }

struct Beginning {
  const Step& step;
  TF_OpKernelContext* context;
  Done done;
};

void begun(void* given, void* pass, const char* problem) {
  const std::unique_ptr<Beginning> beginning(static_cast<Beginning*>(given));
  if (pass == nullptr) {
    const std::string& name = beginning->step.name;
    std::string what;
    core()->describe("gradients", name.data(), name.size(), doors::sink_of(what));
    fail(beginning->context, Error::failed_precondition, what + ": " + problem);
  } else {
    const Status status;
    const Tensor held = tensor_of(pass);
    api().SetOutput(beginning->context, 0, held.get(), status);
    if (!status.ok()) {
      api().OpKernelContext_Failure(beginning->context, status);
    }
  }
  beginning->done();
}

void begin(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Done::until_ended(done, [&](Done&& kept) {
    const Step& step = *static_cast<const Step*>(kernel);
    core()->begin_pass(step.averager, begun, new Beginning{step, context, std::move(kept)});
  });
}

// --- A gradient is ready ---

void destroy_number(void* kernel) { delete static_cast<std::int64_t*>(kernel); }

void* create_ready(TF_OpKernelConstruction* construction) {
  auto index = std::make_unique<std::int64_t>(0);
  const Status status;
  api().OpKernelConstruction_GetAttrInt64(construction, "index", index.get(), status);
  if (!status.ok()) {
    api().OpKernelConstruction_Failure(construction, status);
  }
  return index.release();
}

void ready(void* kernel, TF_OpKernelContext* context) {
  const Status status;
  const Tensor gradient = Tensor::input(context, 0, status);
  const Tensor pass = status.ok() ? Tensor::input(context, 1, status) : Tensor();
  if (!status.ok()) {
    api().OpKernelContext_Failure(context, status);
    return;
  }
  std::string why;
  const auto index = static_cast<std::uint32_t>(*static_cast<std::int64_t*>(kernel));
  if (!core()->gradient_ready(pass_at(pass.data()), index, gradient.data(), gradient.bytes(), doors::sink_of(why))) {
    fail(context, Error::invalid_argument, why);
  }
}

// --- Ends ---

// Dtypes and shapes of the gradients.
struct Outputs {
  std::vector<DataType> types;
  std::vector<std::vector<std::int64_t>> shapes;
};

template <class Element>
std::vector<Element> list_of(TF_OpKernelConstruction* construction, const char* name,
                             void (*get)(TF_OpKernelConstruction*, const char*, Element*, int, TF_Status*),
                             const Status& status) {
  std::int32_t length = 0;
  std::int32_t bytes = 0;
  std::vector<Element> all;
  if (status.ok()) {
    api().OpKernelConstruction_GetAttrSize(construction, name, &length, &bytes, status);
  }
  if (status.ok() && length > 0) {
    all.resize(static_cast<std::size_t>(length));
    get(construction, name, all.data(), length, status);
  }
  return all;
}

void* create_finish(TF_OpKernelConstruction* construction) {
  auto outputs = std::make_unique<Outputs>();
  const Status status;
  outputs->types = list_of<DataType>(construction, "T", api().OpKernelConstruction_GetAttrTypeList, status);
  const auto ranks = list_of<std::int64_t>(construction, "ranks", api().OpKernelConstruction_GetAttrInt64List, status);
  const auto dims = list_of<std::int64_t>(construction, "dims", api().OpKernelConstruction_GetAttrInt64List, status);
  if (!status.ok()) {
    api().OpKernelConstruction_Failure(construction, status);
  }
  auto next = dims.begin();
  for (const std::int64_t rank : ranks) {
    outputs->shapes.emplace_back(next, next + rank);
    next += rank;
  }
  return outputs.release();
}

void destroy_finish(void* kernel) { delete static_cast<Outputs*>(kernel); }

struct Finishing {
  const Outputs& outputs;
  TF_OpKernelContext* context;
  void* pass;  // the input has it until the end
  Done done;
};

void release(void*, std::size_t, void* pass) { core()->let_go_of_pass(pass, false); }

// What is smaller is copied: a program that keeps it does not keep the memory of all gradients.
constexpr std::size_t least_lent = std::size_t{64} * 1024;

// A large output has the pass, and with it the memory that its average is in.
void give(const Finishing& finishing, std::size_t index, const Status& status) {
  const DataType type = finishing.outputs.types[index];
  const std::vector<std::int64_t>& shape = finishing.outputs.shapes[index];
  std::size_t bytes = size_of(dtype_of(type));
  for (const std::int64_t dim : shape) {
    bytes *= static_cast<std::size_t>(dim);
  }
  const int number = static_cast<int>(index);
  const int rank = static_cast<int>(shape.size());
  if (bytes < least_lent) {
    const Tensor copy(api().AllocateOutput(finishing.context, number, type, shape.data(), rank, bytes, status));
    if (status.ok() && bytes > 0) {
      std::memcpy(copy.data(), core()->averaged(finishing.pass, static_cast<std::uint32_t>(index)), bytes);
    }
    return;
  }
  const Tensor average(api().NewTensor(type, shape.data(), rank,
                                       core()->averaged(finishing.pass, static_cast<std::uint32_t>(index)), bytes,
                                       release, core()->share_pass(finishing.pass)));
  api().SetOutput(finishing.context, number, average.get(), status);
}

void finished(void* given, const doors::End* end) {
  const std::unique_ptr<Finishing> finishing(static_cast<Finishing*>(given));
  const Status status;
  if (end->code != 0) {
    status.set(error_of(static_cast<Code>(end->code)), end->message);
  }
  for (std::size_t index = 0; index < finishing->outputs.types.size() && status.ok(); ++index) {
    give(*finishing, index, status);
  }
  if (!status.ok()) {
    api().OpKernelContext_Failure(finishing->context, status);
  }
  finishing->done();
}

void finish(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Done::until_ended(done, [&](Done&& kept) {
    const Status status;
    const Tensor pass = Tensor::input(context, 0, status);
    if (!status.ok()) {
      api().OpKernelContext_Failure(context, status);
      kept();
      return;
    }
    void* const held = pass_at(pass.data());
    core()->finish_pass(held, finished, new Finishing{*static_cast<Outputs*>(kernel), context, held, std::move(kept)});
  });
}

void unknown_shapes(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace

const std::vector<Operation>& gradients() {
  static const auto* const all = new std::vector<Operation>{
      {"ShoalGradientsBegin",
       {"tensor_name: string", "averager: int"},
       {"order: resource"},
       {"step: int64"},
       unknown_shapes,
       create_begin,
       begin,
       nullptr,
       destroy_step},
      {"ShoalGradientReady",
       {dtypes, "index: int"},
       {"x: T", "step: int64"},
       {},
       unknown_shapes,
       create_ready,
       nullptr,
       ready,
       destroy_number},
      {"ShoalGradientsFinish",
       {"T: list(type) >= 0", "ranks: list(int)", "dims: list(int)"},
       {"step: int64"},
       {"y: T"},
       unknown_shapes,
       create_finish,
       finish,
       nullptr,
       destroy_finish},
  };
  return *all;
}

}  // namespace shoal::tensorflow
