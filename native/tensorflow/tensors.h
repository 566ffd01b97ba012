// A status, and a reference to a tensor, that go with their scope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "tensorflow/api.h"

namespace shoal::tensorflow {

class Status {
 public:
  Status() : status_(api().NewStatus()) {}
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() { api().DeleteStatus(status_); }

  operator TF_Status*() const { return status_; }
  bool ok() const { return api().GetCode(status_) == 0; }
  void set(Error error, const std::string& message) const {
    api().SetStatus(status_, static_cast<int>(error), message.c_str());
  }

 private:
  TF_Status* const status_;
};

// Null, or one reference.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TF_Tensor* tensor) : tensor_(tensor) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&& other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Tensor() { reset(); }

  static Tensor input(TF_OpKernelContext* context, int index, const Status& status) {
    TF_Tensor* found = nullptr;
    api().GetInput(context, index, &found, status);
    return Tensor(found);
  }

  void reset() {
    if (tensor_ != nullptr) {
      api().DeleteTensor(std::exchange(tensor_, nullptr));
    }
  }
  TF_Tensor* get() const { return tensor_; }
  explicit operator bool() const { return tensor_ != nullptr; }

  DataType type() const { return api().TensorType(tensor_); }
  std::size_t bytes() const { return api().TensorByteSize(tensor_); }
  std::byte* data() const { return static_cast<std::byte*>(api().TensorData(tensor_)); }
  std::vector<std::int64_t> shape() const {
    std::vector<std::int64_t> dims(static_cast<std::size_t>(api().NumDims(tensor_)));
    for (std::size_t index = 0; index < dims.size(); ++index) {
      dims[index] = api().Dim(tensor_, static_cast<int>(index));
    }
    return dims;
  }

 private:
  TF_Tensor* tensor_ = nullptr;
};

// TensorFlow's numbers of dtypes, and what an operation's attribute T may be.
DType dtype_of(DataType type);
inline constexpr const char* dtypes =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}";
inline constexpr DataType int64_type = 9;

}  // namespace shoal::tensorflow
