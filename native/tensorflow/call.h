// One execution of a kernel: from its inputs to the core's operation, and from the end of that to its outputs.
//
// Promises:
//   * It ends once, with outputs or with an error of the framework's that has the core's whole message.
//   * Inputs and outputs are there until it has ended.
//   * None of TensorFlow's threads waits (done.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "doors/table.h"
#include "tensorflow/api.h"
#include "tensorflow/done.h"
#include "tensorflow/tensors.h"

namespace shoal::tensorflow {

// The core's functions. Null until the module _native has handed them over.
const doors::Table* core();
void set_core(const doors::Table* table);
// What an operation says until then.
inline constexpr const char* without_shoal = "Shoal's operations are loaded without Shoal: import shoal.tensorflow";

// Which of the framework's errors it is. Neither UNAVAILABLE, which loses its message in a graph, nor ABORTED: sessions
// begin again after either, without end.
Error error_of(Code code);

// An attribute that is a text.
std::string text_of(TF_OpKernelConstruction* construction, const char* attribute, const Status& status);

// A kernel's attributes.
struct Attributes {
  std::string name;  // of the operation on the wire
  std::int64_t group = 0;
  std::int64_t op = 0;
  std::int64_t root = 0;
};

class Call {
 public:
  Call(const Attributes& attributes, TF_OpKernelContext* context, Done&& done)
      : attributes_(attributes), context_(context), done_(std::move(done)) {}
  virtual ~Call() = default;

  // Of a call that was made with new: looks at the inputs, calls the core, and deletes it at the end.
  void run();

 protected:
  // What it is for the core; allocates outputs whose sizes are known. Not ok(): why it cannot be. `call`: has name and
  // group.
  virtual void prepare(doors::Call& call, const Status& status) = 0;
  // The core's operation has ended well.
  virtual void finish(const doors::End& end, const Status& status);

  // Takes input 0, which is the array of the operation.
  void take_input(const Status& status);
  // Output 0 with the shape of the input; in its memory, if nobody else uses that.
  void forward_input(const Status& status);
  void allocate(const std::vector<std::int64_t>& shape, const Status& status);
  // Output 0 of so many rows like those of the input, from what the core took memory for.
  void adopt(const doors::End& end, const Status& status);
  // Bytes of a row of the input; 0, and an error, if it has none.
  std::size_t row_bytes(const Status& status) const;

  const Attributes& attributes_;
  TF_OpKernelContext* const context_;
  Tensor input_;
  DataType type_ = 0;
  std::vector<std::int64_t> shape_;  // of the input
  std::size_t bytes_ = 0;            // of the input
  const std::byte* from_ = nullptr;  // the input's elements
  Tensor output_;

 private:
  void end(const doors::End& end);

  Done done_;
  int problem_code_ = 0;
  std::string problem_;  // why this rank cannot take part
};

}  // namespace shoal::tensorflow
