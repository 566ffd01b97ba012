// TensorFlow's C API, as far as it is needed here: found in the library that is loaded, never linked. The declarations
// are our own, since one binary is for all versions from 2.13 on and no header of TensorFlow's is where it is built.
//
// The API is stable; what is asked of it beyond its promises is in done.h alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

namespace shoal::tensorflow {

// Values of the interface.
enum class Error : int { unknown = 2, invalid_argument = 3, failed_precondition = 9 };
using DataType = int;

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using DestroyFunction = void (*)(void* kernel);

struct Api {
  TF_Status* (*NewStatus)() = nullptr;
  void (*DeleteStatus)(TF_Status*) = nullptr;
  void (*SetStatus)(TF_Status*, int code, const char* message) = nullptr;
  int (*GetCode)(const TF_Status*) = nullptr;
  const char* (*Message)(const TF_Status*) = nullptr;

  TF_OpDefinitionBuilder* (*NewOpDefinitionBuilder)(const char* name) = nullptr;
  void (*RegisterOpDefinition)(TF_OpDefinitionBuilder*, TF_Status*) = nullptr;
  void (*OpDefinitionBuilderAddAttr)(TF_OpDefinitionBuilder*, const char*) = nullptr;
  void (*OpDefinitionBuilderAddInput)(TF_OpDefinitionBuilder*, const char*) = nullptr;
  void (*OpDefinitionBuilderAddOutput)(TF_OpDefinitionBuilder*, const char*) = nullptr;
  void (*OpDefinitionBuilderSetIsStateful)(TF_OpDefinitionBuilder*, bool) = nullptr;
  void (*OpDefinitionBuilderSetShapeInferenceFunction)(TF_OpDefinitionBuilder*, ShapeFunction) = nullptr;

  TF_ShapeHandle* (*NewShapeHandle)() = nullptr;
  void (*DeleteShapeHandle)(TF_ShapeHandle*) = nullptr;
  void (*ShapeInferenceContextGetInput)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*) = nullptr;
  void (*ShapeInferenceContextSetOutput)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*) = nullptr;
  TF_ShapeHandle* (*ShapeInferenceContextScalar)(TF_ShapeInferenceContext*) = nullptr;
  TF_ShapeHandle* (*ShapeInferenceContextVectorFromSize)(TF_ShapeInferenceContext*, std::size_t) = nullptr;
  void (*ShapeInferenceContextWithRankAtLeast)(TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t rank,
                                               TF_ShapeHandle*, TF_Status*) = nullptr;
  void (*ShapeInferenceContextSubshape)(TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t begin,
                                        std::int64_t end, TF_ShapeHandle*, TF_Status*) = nullptr;
  void (*ShapeInferenceContextConcatenateShapes)(TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*,
                                                 TF_ShapeHandle*, TF_Status*) = nullptr;

  TF_KernelBuilder* (*NewAsyncKernelBuilder)(const char* op, const char* device, CreateFunction, ComputeFunction,
                                             DestroyFunction) = nullptr;
  TF_KernelBuilder* (*NewKernelBuilder)(const char* op, const char* device, CreateFunction,
                                        void (*compute)(void* kernel, TF_OpKernelContext*), DestroyFunction) = nullptr;
  void (*KernelBuilder_HostMemory)(TF_KernelBuilder*, const char* argument) = nullptr;
  void (*RegisterKernelBuilder)(const char* name, TF_KernelBuilder*, TF_Status*) = nullptr;
  void (*RunAsyncOpKernelDoneCallback)(TF_AsyncOpKernelDoneCallback*) = nullptr;

  void (*OpKernelConstruction_GetAttrSize)(TF_OpKernelConstruction*, const char*, std::int32_t* length,
                                           std::int32_t* bytes, TF_Status*) = nullptr;
  void (*OpKernelConstruction_GetAttrString)(TF_OpKernelConstruction*, const char*, char*, std::size_t,
                                             TF_Status*) = nullptr;
  void (*OpKernelConstruction_GetAttrInt64)(TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*) = nullptr;
  void (*OpKernelConstruction_GetAttrInt64List)(TF_OpKernelConstruction*, const char*, std::int64_t*, int count,
                                                TF_Status*) = nullptr;
  void (*OpKernelConstruction_GetAttrTypeList)(TF_OpKernelConstruction*, const char*, DataType*, int count,
                                               TF_Status*) = nullptr;
  void (*OpKernelConstruction_Failure)(TF_OpKernelConstruction*, TF_Status*) = nullptr;

  void (*GetInput)(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*) = nullptr;
  TF_Tensor* (*ForwardInputOrAllocateOutput)(TF_OpKernelContext*, const int* candidates, int candidate_count,
                                             int output, const std::int64_t* dims, int dim_count, int* forwarded,
                                             TF_Status*) = nullptr;
  TF_Tensor* (*AllocateOutput)(TF_OpKernelContext*, int output, DataType, const std::int64_t* dims, int dim_count,
                               std::size_t bytes, TF_Status*) = nullptr;
  void (*SetOutput)(TF_OpKernelContext*, int output, const TF_Tensor*, TF_Status*) = nullptr;
  void (*OpKernelContext_Failure)(TF_OpKernelContext*, TF_Status*) = nullptr;

  TF_Tensor* (*NewTensor)(DataType, const std::int64_t* dims, int dim_count, void* data, std::size_t bytes,
                          void (*release)(void* data, std::size_t bytes, void* argument), void* argument) = nullptr;
  void (*DeleteTensor)(TF_Tensor*) = nullptr;
  DataType (*TensorType)(const TF_Tensor*) = nullptr;
  int (*NumDims)(const TF_Tensor*) = nullptr;
  std::int64_t (*Dim)(const TF_Tensor*, int) = nullptr;
  std::size_t (*TensorByteSize)(const TF_Tensor*) = nullptr;
  void* (*TensorData)(const TF_Tensor*) = nullptr;

  // Empty if it could be loaded; otherwise what is missing.
  std::string problem;
};

// Of the TensorFlow that this process has loaded.
const Api& api();

}  // namespace shoal::tensorflow
