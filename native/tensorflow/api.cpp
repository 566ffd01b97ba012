#include "tensorflow/api.h"

#include <dlfcn.h>

namespace shoal::tensorflow {

namespace {

const char* const library = "libtensorflow_framework.so.2";

Api load() {
  Api api;
  void* const handle = ::dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) {
    api.problem = std::string(library) + " is not loaded: import tensorflow first";
    return api;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) {
      api.problem = std::string(library) + " has no " + name + ": Shoal needs TensorFlow 2.13 or later, for Linux";
    }
  };
#define SHOAL_FIND(name) find(api.name, "TF_" #name)
  SHOAL_FIND(NewStatus);
  SHOAL_FIND(DeleteStatus);
  SHOAL_FIND(SetStatus);
  SHOAL_FIND(GetCode);
  SHOAL_FIND(Message);
  SHOAL_FIND(NewOpDefinitionBuilder);
  SHOAL_FIND(RegisterOpDefinition);
  SHOAL_FIND(OpDefinitionBuilderAddAttr);
  SHOAL_FIND(OpDefinitionBuilderAddInput);
  SHOAL_FIND(OpDefinitionBuilderAddOutput);
  SHOAL_FIND(OpDefinitionBuilderSetIsStateful);
  SHOAL_FIND(OpDefinitionBuilderSetShapeInferenceFunction);
  SHOAL_FIND(NewShapeHandle);
  SHOAL_FIND(DeleteShapeHandle);
  SHOAL_FIND(ShapeInferenceContextGetInput);
  SHOAL_FIND(ShapeInferenceContextSetOutput);
  SHOAL_FIND(ShapeInferenceContextScalar);
  SHOAL_FIND(ShapeInferenceContextVectorFromSize);
  SHOAL_FIND(ShapeInferenceContextWithRankAtLeast);
  SHOAL_FIND(ShapeInferenceContextSubshape);
  SHOAL_FIND(ShapeInferenceContextConcatenateShapes);
  SHOAL_FIND(NewAsyncKernelBuilder);
  SHOAL_FIND(NewKernelBuilder);
  SHOAL_FIND(KernelBuilder_HostMemory);
  SHOAL_FIND(RegisterKernelBuilder);
  SHOAL_FIND(RunAsyncOpKernelDoneCallback);
  SHOAL_FIND(OpKernelConstruction_GetAttrSize);
  SHOAL_FIND(OpKernelConstruction_GetAttrString);
  SHOAL_FIND(OpKernelConstruction_GetAttrInt64);
  SHOAL_FIND(OpKernelConstruction_GetAttrInt64List);
  SHOAL_FIND(OpKernelConstruction_GetAttrTypeList);
  SHOAL_FIND(OpKernelConstruction_Failure);
  SHOAL_FIND(GetInput);
  SHOAL_FIND(ForwardInputOrAllocateOutput);
  SHOAL_FIND(AllocateOutput);
  SHOAL_FIND(SetOutput);
  SHOAL_FIND(OpKernelContext_Failure);
  SHOAL_FIND(NewTensor);
  SHOAL_FIND(DeleteTensor);
  SHOAL_FIND(TensorType);
  SHOAL_FIND(NumDims);
  SHOAL_FIND(Dim);
  SHOAL_FIND(TensorByteSize);
  SHOAL_FIND(TensorData);
#undef SHOAL_FIND
  return api;
}

}  // namespace

const Api& api() {
  static const Api* const the_api = new Api(load());
  return *the_api;
}

}  // namespace shoal::tensorflow
