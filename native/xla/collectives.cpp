// The collective operations as calls of a compiled program. Shapes of results were settled when it was compiled, so
// those that are not as they were expected are errors, found by every rank alike.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "doors/table.h"
#include "xla/execution.h"
#include "xla/handlers.h"

namespace shoal::xla {

namespace {

using doors::End;
using doors::Place;

class Call : public Execution {
 public:
  Call(const Frame& frame, Collective collective)
      : Execution(frame), collective_(collective), input_(operands.front()), output_(results.front()) {}
  virtual ~Call() = default;

  void start() {
    doors::Call call;
    call.collective = static_cast<int>(collective_);
    call.op = static_cast<int>(op);
    call.root = static_cast<std::uint32_t>(root);
    call.group = group;
    call.name = name.data();
    call.name_bytes = name.size();
    call.dtype = static_cast<int>(input_.dtype);
    call.shape = input_.shape.data();
    call.dimensions = input_.shape.size();
    is_prepared_ = core()->place(group, expected, &place_, doors::sink_of(problem_));
    if (is_prepared_) {
      problem_ = prepare(call);
    }
    if (!problem_.empty()) {
      call.failure = problem_.c_str();  // the others hear of it
    }
    core()->call(&call, [](void* self, const End* end) { static_cast<Call*>(self)->end(*end); }, this);
  }

 protected:
  // What it is for the core. Not empty: why this rank cannot take part.
  virtual std::string prepare(doors::Call& call) = 0;
  // The core's operation has ended well. Not empty: its result is not what the program has room for.
  virtual std::string finish(const End&) { return ""; }

  // Of what was compiled for a job of another size.
  static std::string of_another_size() {
    return "this was compiled for another number of ranks: trace the function again after shoal.init()";
  }

  Collective collective_;
  const View& input_;
  const View& output_;
  Place place_;

 private:
  void end(const End& end) {
    const std::unique_ptr<Call> self(this);
    if (!problem_.empty()) {
      // The core's message says where that was.
      fail(is_prepared_ ? Problem::invalid_argument : Problem::failed_precondition, end.message);
    } else if (end.code != 0) {
      fail(problem_of(end.code), end.message);
    } else if (const std::string why = finish(end); !why.empty()) {
      std::string what;
      core()->describe_end(&end, doors::sink_of(what));
      fail(Problem::failed_precondition, what + ": " + why);
    } else {
      succeed();
    }
  }

  bool is_prepared_ = false;
  std::string problem_;  // why this rank cannot take part
};

class AllReduce final : public Call {
 public:
  explicit AllReduce(const Frame& frame) : Call(frame, Collective::all_reduce) {}

 private:
  std::string prepare(doors::Call& call) override {
    call.input = input_.data;
    call.output = output_.data;
    call.input_bytes = call.output_bytes = input_.bytes;
    return "";
  }
};

class Broadcast final : public Call {
 public:
  explicit Broadcast(const Frame& frame) : Call(frame, Collective::broadcast) {}

 private:
  std::string prepare(doors::Call& call) override {
    call.output = output_.data;
    call.output_bytes = output_.bytes;
    if (place_.index == call.root) {
      if (output_.data != input_.data && input_.bytes > 0) {
        std::memcpy(output_.data, input_.data, input_.bytes);
      }
      call.input = output_.data;
      call.input_bytes = output_.bytes;
    }
    return "";
  }
};

class ReduceScatter final : public Call {
 public:
  explicit ReduceScatter(const Frame& frame) : Call(frame, Collective::reduce_scatter) {}

 private:
  std::string prepare(doors::Call& call) override {
    const std::int64_t rows = input_.shape[0];
    if (output_.shape[0] != rows / place_.members + (place_.index < rows % place_.members ? 1 : 0)) {
      return of_another_size();
    }
    call.input = input_.data;
    call.input_bytes = input_.bytes;
    call.output = output_.data;
    call.output_bytes = output_.bytes;
    return "";
  }
};

// What comes is as much from every member.
class Gathering : public Call {
 public:
  using Call::Call;

 protected:
  std::string take(const End& end, const char* must) {
    const std::size_t expected = output_.bytes / place_.members;
    const bool as_expected = std::all_of(end.blocks, end.blocks + end.members,
                                         [expected](std::uint64_t bytes) { return bytes == expected; });
    if (!as_expected || end.output_bytes != output_.bytes) {
      std::string rows;
      const std::size_t row = std::max<std::size_t>(row_bytes(), 1);
      for (std::size_t member = 0; member < end.members; ++member) {
        rows += (member == 0 ? "" : ", ") + std::to_string(end.blocks[member] / row);
      }
      return std::string(must) + ": what came has " + rows + " rows. Call it outside of jit_compile=True";
    }
    if (end.output_bytes > 0) {
      std::memcpy(output_.data, end.output, end.output_bytes);
    }
    return "";
  }

 private:
  std::size_t row_bytes() const {
    std::size_t bytes = size_of(input_.dtype);
    for (std::size_t index = 1; index < input_.shape.size(); ++index) {
      bytes *= static_cast<std::size_t>(input_.shape[index]);
    }
    return bytes;
  }
};

class AllGather final : public Gathering {
 public:
  explicit AllGather(const Frame& frame) : Gathering(frame, Collective::all_gather) {}

 private:
  std::string prepare(doors::Call& call) override {
    if (output_.bytes != input_.bytes * place_.members) {
      return of_another_size();
    }
    call.input = input_.data;
    call.input_bytes = input_.bytes;
    return "";
  }
  std::string finish(const End& end) override { return take(end, "XLA gathers as many rows from every member"); }
};

class AllToAll final : public Gathering {
 public:
  explicit AllToAll(const Frame& frame) : Gathering(frame, Collective::all_to_all) {}

 private:
  std::string prepare(doors::Call& call) override {
    if (input_.shape[0] % place_.members != 0) {
      return of_another_size();
    }
    splits_.assign(place_.members, static_cast<std::int64_t>(input_.bytes / place_.members));
    call.splits = splits_.data();
    call.members = splits_.size();
    call.input = input_.data;
    call.input_bytes = input_.bytes;
    return "";
  }
  std::string finish(const End& end) override { return take(end, "XLA exchanges as many rows between all members"); }

  std::vector<std::int64_t> splits_;
};

}  // namespace

Error* all_reduce(Frame* frame) { return Execution::run<AllReduce>(frame); }
Error* reduce_scatter(Frame* frame) { return Execution::run<ReduceScatter>(frame); }
Error* broadcast(Frame* frame) { return Execution::run<Broadcast>(frame); }
Error* all_gather(Frame* frame) { return Execution::run<AllGather>(frame); }
Error* all_to_all(Frame* frame) { return Execution::run<AllToAll>(frame); }

}  // namespace shoal::xla
