// Registers the operations when TensorFlow loads this library (tf.load_op_library), which wants that to happen within
// dlopen. What went wrong is kept for Python to ask: nothing may be thrown from here.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "doors/table.h"
#include "tensorflow/api.h"
#include "tensorflow/call.h"
#include "tensorflow/done.h"
#include "tensorflow/operation.h"
#include "tensorflow/tensors.h"
#include "xla/execution.h"

namespace shoal::tensorflow {

namespace {

std::string& problem() {
  static auto* const the_problem = new std::string();
  return *the_problem;
}

void define(const Operation& operation, const Status& status) {
  TF_OpDefinitionBuilder* const builder = api().NewOpDefinitionBuilder(operation.name);
  for (const char* const attribute : operation.attributes) {
    api().OpDefinitionBuilderAddAttr(builder, attribute);
  }
  for (const char* const input : operation.inputs) {
    api().OpDefinitionBuilderAddInput(builder, input);
  }
  for (const char* const output : operation.outputs) {
    api().OpDefinitionBuilderAddOutput(builder, output);
  }
  // Else it would be folded, merged with another one, or pruned.
  api().OpDefinitionBuilderSetIsStateful(builder, true);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder, operation.shape);
  api().RegisterOpDefinition(builder, status);
}

std::string argument(const char* declaration) {
  const std::string all = declaration;
  return all.substr(0, all.find(':'));
}

// On a GPU, too: TensorFlow brings arrays to memory of the host and back.
void add_kernel(const Operation& operation, const std::string& device, const Status& status) {
  TF_KernelBuilder* const builder = operation.compute != nullptr
                                        ? api().NewAsyncKernelBuilder(operation.name, device.c_str(), operation.create,
                                                                      operation.compute, operation.destroy)
                                        : api().NewKernelBuilder(operation.name, device.c_str(), operation.create,
                                                                 operation.compute_at_once, operation.destroy);
  if (device != "CPU") {
    for (const auto* const arguments : {&operation.inputs, &operation.outputs}) {
      for (const char* const declaration : *arguments) {
        api().KernelBuilder_HostMemory(builder, argument(declaration).c_str());
      }
    }
  }
  api().RegisterKernelBuilder((operation.name + device).c_str(), builder, status);
}

std::string register_all() {
  if (!api().problem.empty()) {
    return api().problem;
  }
  for (const auto* const operations : {&collectives(), &gradients(), &places()}) {
    for (const Operation& operation : *operations) {
      const Status status;
      define(operation, status);
      for (const char* const device : {"CPU", "GPU"}) {
        if (status.ok()) {
          add_kernel(operation, device, status);
        }
      }
      if (!status.ok()) {
        return std::string(operation.name) + " cannot be registered: " + api().Message(status);
      }
    }
  }
  return "";
}

const bool registered = [] {
  problem() = register_all();
  return problem().empty();
}();

}  // namespace

}  // namespace shoal::tensorflow

#define SHOAL_EXPORTED extern "C" __attribute__((visibility("default")))

// Why the operations are not there; empty: they are.
SHOAL_EXPORTED const char* shoal_tensorflow_problem() { return shoal::tensorflow::problem().c_str(); }

// Hands over the core's functions. Returns whether they are those that this was built with.
SHOAL_EXPORTED int shoal_tensorflow_connect(const shoal::doors::Table* table) {
  if (table->size != sizeof(shoal::doors::Table)) {
    return 0;
  }
  shoal::tensorflow::set_core(table);
  shoal::xla::set_core(table);
  return 1;
}

// Why compiled programs cannot call the operations; empty: they can, from now on.
SHOAL_EXPORTED const char* shoal_tensorflow_enable_xla() { return shoal::tensorflow::enable_xla(); }

// For tests (xla/execution.h).
SHOAL_EXPORTED void shoal_tensorflow_distrust_xla(int on) { shoal::xla::Execution::distrust(on != 0); }
SHOAL_EXPORTED std::int64_t shoal_tensorflow_xla_futures() { return shoal::xla::Execution::futures_made(); }

// For tests (done.h).
SHOAL_EXPORTED void shoal_tensorflow_distrust(int on) { shoal::tensorflow::Done::distrust(on != 0); }
