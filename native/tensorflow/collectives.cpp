// The collective operations as TensorFlow's: a kernel and a shape for each.

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "tensorflow/call.h"
#include "tensorflow/operation.h"
#include "tensorflow/tensors.h"

namespace shoal::tensorflow {

namespace {

using doors::End;
using doors::Place;

// Who this rank is in the group of the call.
Place place_of(const Attributes& attributes, const Status& status) {
  Place place;
  std::string why;
  if (!core()->place(attributes.group, {}, &place, doors::sink_of(why))) {
    status.set(Error::failed_precondition, why);
  }
  return place;
}

class AllReduce final : public Call {
  using Call::Call;

  void prepare(doors::Call& call, const Status& status) override {
    call.collective = static_cast<int>(Collective::all_reduce);
    call.op = static_cast<int>(attributes_.op);
    forward_input(status);
    if (status.ok()) {
      call.input = from_;
      call.output = output_.data();
      call.input_bytes = call.output_bytes = bytes_;
    }
  }
};

class Broadcast final : public Call {
  using Call::Call;

  void prepare(doors::Call& call, const Status& status) override {
    call.collective = static_cast<int>(Collective::broadcast);
    call.root = static_cast<std::uint32_t>(attributes_.root);
    const Place place = place_of(attributes_, status);
    if (status.ok()) {
      forward_input(status);
    }
    if (!status.ok()) {
      return;
    }
    call.output = output_.data();
    call.output_bytes = bytes_;
    if (place.index == call.root) {
      if (call.output != from_) {
        std::memcpy(call.output, from_, bytes_);
      }
      call.input = call.output;
      call.input_bytes = bytes_;
    }
  }
};

class AllGather final : public Call {
  using Call::Call;

  void prepare(doors::Call& call, const Status& status) override {
    call.collective = static_cast<int>(Collective::all_gather);
    call.input = from_;
    call.input_bytes = bytes_;
    row_bytes(status);
  }
  void finish(const End& end, const Status& status) override { adopt(end, status); }
};

class ReduceScatter final : public Call {
  using Call::Call;

  void prepare(doors::Call& call, const Status& status) override {
    call.collective = static_cast<int>(Collective::reduce_scatter);
    call.op = static_cast<int>(attributes_.op);
    call.input = from_;
    call.input_bytes = bytes_;
    const Place place = place_of(attributes_, status);
    if (!status.ok() || row_bytes(status) == 0) {
      return;
    }
    // The first members have one more of what is left over, as in shoal.reducescatter.
    std::vector<std::int64_t> shape = shape_;
    shape[0] = shape_[0] / place.members + (place.index < shape_[0] % place.members ? 1 : 0);
    allocate(shape, status);
    if (status.ok()) {
      call.output = output_.data();
      call.output_bytes = output_.bytes();
    }
  }
};

// Inputs: the array, and how many rows are for each member; none: the same number for all.
class AllToAll final : public Call {
  using Call::Call;

  void prepare(doors::Call& call, const Status& status) override {
    call.collective = static_cast<int>(Collective::all_to_all);
    call.input = from_;
    call.input_bytes = bytes_;
    const Place place = place_of(attributes_, status);
    const std::size_t row = status.ok() ? row_bytes(status) : 0;
    if (row == 0 || !take_splits(place, status)) {
      return;
    }
    for (std::int64_t& split : splits_) {
      split *= static_cast<std::int64_t>(row);
    }
    call.splits = splits_.data();
    call.members = splits_.size();
  }

  bool take_splits(const Place& place, const Status& status) {
    const Tensor given = Tensor::input(context_, 1, status);
    if (!status.ok()) {
      return false;
    }
    const auto* const first = reinterpret_cast<const std::int64_t*>(given.data());
    splits_.assign(first, first + given.bytes() / sizeof(std::int64_t));
    const std::int64_t rows = shape_[0];
    if (splits_.empty() && rows % place.members == 0) {
      splits_.assign(place.members, rows / place.members);
    } else if (splits_.empty()) {
      status.set(Error::invalid_argument, "the first dimension, " + std::to_string(rows) +
                                              ", is not a multiple of the group's " + std::to_string(place.members) +
                                              " members: say splits=");
      return false;
    }
    std::int64_t left = rows;
    bool fits = splits_.size() == place.members;
    for (const std::int64_t split : splits_) {
      fits = fits && split >= 0 && split <= left;
      left -= fits ? split : 0;
    }
    if (!fits || left != 0) {
      status.set(Error::invalid_argument,
                 "splits must be " + std::to_string(place.members) +
                     " numbers of rows, one for each member, that add up to the first dimension, " +
                     std::to_string(rows));
      return false;
    }
    return true;
  }

  void finish(const End& end, const Status& status) override {
    adopt(end, status);
    if (!status.ok()) {
      return;
    }
    const auto members = static_cast<std::int64_t>(end.members);
    const Tensor received(
        api().AllocateOutput(context_, 1, int64_type, &members, 1, end.members * sizeof(std::int64_t), status));
    if (status.ok()) {
      auto* const counts = reinterpret_cast<std::int64_t*>(received.data());
      for (std::size_t index = 0; index < end.members; ++index) {
        counts[index] = static_cast<std::int64_t>(end.blocks[index] / row_bytes(status));
      }
    }
  }

  std::vector<std::int64_t> splits_;
};

void* create(TF_OpKernelConstruction* construction) {
  auto attributes = std::make_unique<Attributes>();
  const Status status;
  attributes->name = text_of(construction, "tensor_name", status);
  if (status.ok()) {
    api().OpKernelConstruction_GetAttrInt64(construction, "group", &attributes->group, status);
  }
  if (!status.ok()) {
    api().OpKernelConstruction_Failure(construction, status);
  }
  // Not every operation has these.
  const Status ignored;
  api().OpKernelConstruction_GetAttrInt64(construction, "op", &attributes->op, ignored);
  api().OpKernelConstruction_GetAttrInt64(construction, "root", &attributes->root, ignored);
  return attributes.release();
}

void destroy(void* kernel) { delete static_cast<Attributes*>(kernel); }

template <class Kind>
void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Done::until_ended(done, [&](Done&& kept) {
    Call* const call = new Kind(*static_cast<const Attributes*>(kernel), context, std::move(kept));
    call->run();
  });
}

// --- Shapes ---

class Shape {
 public:
  explicit Shape(TF_ShapeHandle* made = api().NewShapeHandle()) : handle_(made) {}
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  ~Shape() { api().DeleteShapeHandle(handle_); }
  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* const handle_;
};

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape;
  api().ShapeInferenceContextGetInput(context, 0, shape, status);
  if (api().GetCode(status) == 0) {
    api().ShapeInferenceContextSetOutput(context, 0, shape, status);
  }
}

// How many rows there are is known when the operation has ended.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto ok = [status] { return api().GetCode(status) == 0; };
  const Shape given;
  const Shape row;
  const Shape all;
  const Shape unknown(api().ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
  api().ShapeInferenceContextGetInput(context, 0, given, status);
  if (ok()) {
    api().ShapeInferenceContextWithRankAtLeast(context, given, 1, given, status);
  }
  if (ok()) {
    api().ShapeInferenceContextSubshape(context, given, 1, std::numeric_limits<std::int64_t>::max(), row, status);
  }
  if (ok()) {
    api().ShapeInferenceContextConcatenateShapes(context, unknown, row, all, status);
  }
  if (ok()) {
    api().ShapeInferenceContextSetOutput(context, 0, all, status);
  }
}

void other_rows_and_counts(TF_ShapeInferenceContext* context, TF_Status* status) {
  other_rows(context, status);
  if (api().GetCode(status) == 0) {
    const Shape counts(api().ShapeInferenceContextVectorFromSize(context, static_cast<std::size_t>(-1)));
    api().ShapeInferenceContextSetOutput(context, 1, counts, status);
  }
}

template <class Kind>
Operation operation(const char* name, std::vector<const char*> attributes, ShapeFunction shape,
                    std::vector<const char*> inputs = {"x: T"}, std::vector<const char*> outputs = {"y: T"}) {
  attributes.insert(attributes.end(), {dtypes, "tensor_name: string", "group: int"});
  // Read by nobody: calls of the same name share it, so TensorFlow makes them in the program's order.
  inputs.emplace_back("order: resource");
  return {name,   std::move(attributes), std::move(inputs), std::move(outputs), shape, create, compute<Kind>, nullptr,
          destroy};
}

}  // namespace

const std::vector<Operation>& collectives() {
  static const auto* const all = new std::vector<Operation>{
      operation<AllReduce>("ShoalAllreduce", {"op: int"}, same_shape),
      operation<ReduceScatter>("ShoalReducescatter", {"op: int"}, other_rows),
      operation<Broadcast>("ShoalBroadcast", {"root: int"}, same_shape),
      operation<AllGather>("ShoalAllgather", {}, other_rows),
      operation<AllToAll>("ShoalAlltoall", {}, other_rows_and_counts, {"x: T", "splits: int64"},
                          {"y: T", "received: int64"}),
  };
  return *all;
}

}  // namespace shoal::tensorflow
