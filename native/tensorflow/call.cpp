#include "tensorflow/call.h"

#include <atomic>
#include <cstring>
#include <numeric>

namespace shoal::tensorflow {

namespace {

std::atomic<const doors::Table*> the_core{nullptr};

// Memory that belongs to the core until TensorFlow lets go of it.
void release(void*, std::size_t, void* kept) { core()->release(kept); }

// Alignment that a tensor's memory needs; TensorFlow copies what has less.
constexpr std::uintptr_t alignment = 64;

}  // namespace

const doors::Table* core() { return the_core; }
void set_core(const doors::Table* table) { the_core = table; }

Error error_of(Code code) {
  switch (code) {
    case Code::mismatch:
    case Code::cancelled:
      return Error::failed_precondition;
    default:
      return Error::unknown;
  }
}

std::string text_of(TF_OpKernelConstruction* construction, const char* attribute, const Status& status) {
  std::int32_t length = 0;
  std::int32_t bytes = 0;
  std::string text;
  api().OpKernelConstruction_GetAttrSize(construction, attribute, &length, &bytes, status);
  if (status.ok()) {
    text.resize(static_cast<std::size_t>(bytes));
    api().OpKernelConstruction_GetAttrString(construction, attribute, text.data(), text.size(), status);
  }
  return text;
}

void Call::run() {
  const Status status;
  doors::Call call;
  call.name = attributes_.name.data();
  call.name_bytes = attributes_.name.size();
  call.group = attributes_.group;
  if (core() == nullptr) {
    status.set(Error::failed_precondition, without_shoal);
  } else {
    take_input(status);
  }
  if (status.ok()) {
    prepare(call, status);
  }
  if (!status.ok()) {
    // The others hear of it.
    problem_code_ = api().GetCode(status);
    problem_ = api().Message(status);
    call = {.collective = call.collective,
            .group = call.group,
            .name = call.name,
            .name_bytes = call.name_bytes,
            .failure = problem_.c_str()};
  }
  if (core() == nullptr) {
    end({});
    return;
  }
  call.dtype = static_cast<int>(dtype_of(type_));
  call.shape = shape_.data();
  call.dimensions = shape_.size();
  core()->call(&call, [](void* self, const doors::End* end) { static_cast<Call*>(self)->end(*end); }, this);
}

void Call::end(const doors::End& end) {
  const std::unique_ptr<Call> self(this);
  const Status status;
  if (problem_code_ != 0) {
    // The core's message says where that was.
    status.set(static_cast<Error>(problem_code_), end.message != nullptr ? end.message : problem_);
  } else if (end.code != 0) {
    status.set(error_of(static_cast<Code>(end.code)), end.message);
  } else {
    finish(end, status);
    if (!status.ok()) {
      const std::string why = api().Message(status);
      std::string what;
      core()->describe_end(&end, doors::sink_of(what));
      status.set(static_cast<Error>(api().GetCode(status)), what + ": " + why);
    }
  }
  if (!status.ok()) {
    api().OpKernelContext_Failure(context_, status);
  }
  // Before the context goes: what follows may want the memory.
  input_.reset();
  output_.reset();
  done_();
}

void Call::finish(const doors::End&, const Status&) {}

void Call::take_input(const Status& status) {
  input_ = Tensor::input(context_, 0, status);
  if (!status.ok()) {
    return;
  }
  type_ = input_.type();
  shape_ = input_.shape();
  bytes_ = input_.bytes();
  from_ = input_.data();
}

void Call::forward_input(const Status& status) {
  // With a reference of ours it would count as used by somebody else.
  input_.reset();
  const int candidate = 0;
  int forwarded = -1;
  output_ = Tensor(api().ForwardInputOrAllocateOutput(context_, &candidate, 1, 0, shape_.data(),
                                                      static_cast<int>(shape_.size()), &forwarded, status));
  if (status.ok() && output_.data() != from_) {
    input_ = Tensor::input(context_, 0, status);
  }
}

void Call::allocate(const std::vector<std::int64_t>& shape, const Status& status) {
  const std::size_t elements = std::accumulate(shape.begin(), shape.end(), std::size_t{1},
                                               [](std::size_t a, auto b) { return a * static_cast<std::size_t>(b); });
  output_ = Tensor(api().AllocateOutput(context_, 0, type_, shape.data(), static_cast<int>(shape.size()),
                                        elements * size_of(dtype_of(type_)), status));
}

void Call::adopt(const doors::End& end, const Status& status) {
  std::vector<std::int64_t> shape = shape_;
  shape[0] = static_cast<std::int64_t>(end.output_bytes / row_bytes(status));
  if (end.output_bytes > 0 && reinterpret_cast<std::uintptr_t>(end.output) % alignment == 0) {
    output_ = Tensor(api().NewTensor(type_, shape.data(), static_cast<int>(shape.size()), end.output, end.output_bytes,
                                     release, core()->keep(&end)));
    api().SetOutput(context_, 0, output_.get(), status);
    return;
  }
  allocate(shape, status);
  if (status.ok() && end.output_bytes > 0) {
    std::memcpy(output_.data(), end.output, end.output_bytes);
  }
}

std::size_t Call::row_bytes(const Status& status) const {
  if (shape_.empty()) {
    status.set(Error::invalid_argument,
               "the tensor must have at least one dimension, by which it is cut into rows: pass tf.reshape(x, [1])");
    return 0;
  }
  std::size_t bytes = size_of(dtype_of(type_));
  for (std::size_t index = 1; index < shape_.size(); ++index) {
    bytes *= static_cast<std::size_t>(shape_[index]);
  }
  if (bytes == 0) {
    status.set(Error::invalid_argument, "the tensor's rows have no elements, so they cannot be counted");
  }
  return bytes;
}

}  // namespace shoal::tensorflow
