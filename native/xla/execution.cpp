#include "xla/execution.h"

#include <atomic>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace shoal::xla {

namespace {

std::atomic<const doors::Table*> the_core{nullptr};
std::atomic<bool> distrusted{false};
std::atomic<std::int64_t> futures{0};

constexpr int scalar_type = 3;
constexpr int text_type = 4;

DType dtype_of(int dtype) {
  switch (dtype) {
    case 1:
      return DType::boolean;
    case 2:
      return DType::int8;
    case 3:
      return DType::int16;
    case 4:
      return DType::int32;
    case 5:
      return DType::int64;
    case 6:
      return DType::uint8;
    case 7:
      return DType::uint16;
    case 8:
      return DType::uint32;
    case 9:
      return DType::uint64;
    case 10:
      return DType::float16;
    case 11:
      return DType::float32;
    case 12:
      return DType::float64;
    case 16:
      return DType::bfloat16;
    default:
      return DType::none;
  }
}

std::vector<View> views_of(const Arrays& arrays) {
  std::vector<View> views;
  views.reserve(static_cast<std::size_t>(arrays.count));
  for (std::int64_t index = 0; index < arrays.count; ++index) {
    const Array& array = *arrays.items[index];
    View view;
    view.dtype = dtype_of(array.dtype);
    view.shape.assign(array.dims, array.dims + array.rank);
    view.data = static_cast<std::byte*>(array.data);
    view.bytes = size_of(view.dtype);
    for (const std::int64_t dim : view.shape) {
      view.bytes *= static_cast<std::size_t>(dim);
    }
    views.push_back(std::move(view));
  }
  return views;
}

class Given {
 public:
  explicit Given(const xla::Attributes& attributes) : attributes_(attributes) {}

  std::string text(std::string_view name) const {
    const void* const found = find(name, text_type);
    const auto* const text = static_cast<const Text*>(found);
    return text == nullptr ? "" : std::string(text->data, text->bytes);
  }
  std::int64_t number(std::string_view name, std::int64_t otherwise = 0) const {
    std::int64_t number = otherwise;
    if (const void* const found = find(name, scalar_type)) {
      std::memcpy(&number, static_cast<const Scalar*>(found)->value, sizeof number);
    }
    return number;
  }

 private:
  const void* find(std::string_view name, int type) const {
    for (std::int64_t index = 0; index < attributes_.count; ++index) {
      const Text& its_name = *attributes_.names[index];
      if (std::string_view(its_name.data, its_name.bytes) == name && attributes_.types[index] == type) {
        return attributes_.items[index];
      }
    }
    return nullptr;
  }

  const xla::Attributes& attributes_;
};

}  // namespace

const doors::Table* core() { return the_core; }
void set_core(const doors::Table* table) { the_core = table; }

Problem problem_of(int code) {
  switch (static_cast<Code>(code)) {
    case Code::mismatch:
    case Code::cancelled:
      return Problem::failed_precondition;
    default:
      return Problem::unknown;
  }
}

Execution::Execution(const Frame& frame)
    : operands(views_of(frame.operands)), results(views_of(frame.results)), api_(frame.api) {
  const Given given(frame.attributes);
  kind = given.text("kind");
  name = given.text("name");
  group = given.number("group");
  op = given.number("op");
  root = given.number("root");
  averager = given.number("averager");
  expected = {given.number("members"), given.number("index", -1)};
  if (given.number("ordered") != 0) {
    operands.pop_back();
  }
  std::memset(results.back().data, 0, results.back().bytes);
  results.pop_back();
}

bool Execution::answered_for_version(Frame* frame) {
  for (Extension* extension = frame->extensions; extension != nullptr; extension = extension->next) {
    if (extension->type == metadata_extension) {
      Metadata& metadata = *reinterpret_cast<MetadataExtension*>(extension)->metadata;
      metadata.version.major = major_version;
      metadata.version.minor = minor_version;
      metadata.traits = 0;
      return true;
    }
  }
  return false;
}

Error* Execution::error(const Api& api, Problem problem, const std::string& message) {
  const std::string text = "shoal: " + message;
  ErrorArguments arguments{sizeof arguments, nullptr, text.c_str(), static_cast<int>(problem)};
  return api.make_error(&arguments);
}

// The program goes on when the future is complete, or, where there is none, when the handler returns.
std::shared_ptr<Execution::Wait> Execution::promise(Frame* frame) {
  // The frame's size says nothing: XLA gives it without the future, whether it has one or not.
  const bool has_futures = api_->size >= sizeof(Api);
  if (has_futures && !distrusted) {
    FutureArguments arguments{sizeof arguments, nullptr, nullptr};
    if (Error* const problem = api_->make_future(&arguments); problem == nullptr) {
      future_ = frame->future = arguments.future;
      ++futures;
      return nullptr;
    }
  }
  wait_ = std::make_shared<Wait>();
  return wait_;
}

void Execution::succeed() { end(nullptr); }

void Execution::fail(Problem problem, const std::string& message) { end(error(*api_, problem, message)); }

std::string Execution::described() const {
  std::string text;
  core()->describe(kind.c_str(), name.data(), name.size(), doors::sink_of(text));
  return text;
}

void Execution::end(Error* error) {
  if (wait_ != nullptr) {
    wait_->end(error);
  } else if (error != nullptr) {
    FutureErrorArguments arguments{sizeof arguments, nullptr, future_, error};
    api_->fail_future(&arguments);
  } else {
    FutureArguments arguments{sizeof arguments, nullptr, future_};
    api_->complete_future(&arguments);
  }
}

void Execution::distrust(bool on) { distrusted = on; }
std::int64_t Execution::futures_made() { return futures; }

}  // namespace shoal::xla
