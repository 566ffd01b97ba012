// Engine, Handle, Course, Completions, Status and JobConfig.
//
// No native thread ever takes the GIL, so none may drop a Python object. The arrays of an operation are therefore kept
// here, in a table that is only touched under the GIL, and let go when Python next has something to do with
// the engine or a handle after the operation is done.
#include "engine/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/array.h"
#include "bindings/bindings.h"
#include "bindings/completions.h"
#include "bindings/signals.h"
#include "doors/door.h"
#include "engine/at_exit.h"
#include "engine/callers.h"
#include "engine/course.h"
#include "os/fork_guard.h"

namespace shoal::python {

namespace {

using namespace nb::literals;
using engine::Operation;

// The arrays that an open operation reads and writes: whatever Python does with them, their memory stays.
class Held {
 public:
  Held(nb::object input, nb::object output) : input_(std::move(input)), output_(std::move(output)) {
    if (!input_.is_none()) {
      held_[0] = &nb::cast<const Array&>(input_);
    }
    if (!output_.is_none() && !output_.is(input_)) {
      held_[1] = &nb::cast<const Array&>(output_);
    }
    each(&Array::hold);
  }
  Held(Held&&) = delete;
  Held& operator=(Held&&) = delete;
  ~Held() { each(&Array::release); }

 private:
  void each(void (Array::*what)() const) const {
    for (const Array* array : held_) {
      if (array != nullptr) {
        (array->*what)();
      }
    }
  }

  const nb::object input_;
  const nb::object output_;
  const Array* held_[2] = {};
};

// Of time.monotonic_ns.
std::int64_t nanoseconds_at(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// A course that has ended.
const engine::Course& ended(const engine::Course& course) {
  if (!course.has_ended()) {
    throw std::runtime_error("the operation is not done yet; wait for it first");
  }
  return course;
}

std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint64_t> moments_of(
    const engine::Course& course) {
  ended(course);
  return {nanoseconds_at(course.input_ready),  nanoseconds_at(course.sent),       nanoseconds_at(course.all_called),
          nanoseconds_at(course.first_result), nanoseconds_at(course.ended_at()), course.flush};
}

// By handle. Touched under the GIL only.
using ArraysInFlight = std::unordered_map<std::uint64_t, Held>;

class BoundEngine {
 public:
  BoundEngine(std::uint32_t rank, const JobConfig& config) : engine_(rank, config) {}
  ~BoundEngine() {
    const nb::gil_scoped_release released;
    doors::forget(&engine_);
    engine_.close();
  }

  engine::Engine& engine() { return engine_; }
  const std::shared_ptr<ArraysInFlight>& in_flight() const { return in_flight_; }

  std::shared_ptr<Operation> submit(Submission&& submission, nb::object input, nb::object output, const Gate* gate) {
    engine::note_call();
    let_go();
    // Under the GIL throughout: the arrays are in the table before anyone can ask for what is finished.
    std::shared_ptr<Operation> operation =
        engine_.submit(std::move(submission), gate == nullptr ? std::nullopt : std::optional(*gate));
    in_flight_->try_emplace(operation->handle(), std::move(input), std::move(output));
    return operation;
  }

  // Lets go of the arrays of finished operations.
  void let_go() {
    for (std::uint64_t handle : engine_.take_finished()) {
      in_flight_->erase(handle);
    }
  }

 private:
  std::shared_ptr<ArraysInFlight> in_flight_ = std::make_shared<ArraysInFlight>();
  engine::Engine engine_;  // closed before the arrays go: it writes to them until then
};

class Handle {
 public:
  Handle(std::shared_ptr<Operation> operation, std::weak_ptr<ArraysInFlight> arrays)
      : operation_(std::move(operation)), arrays_(std::move(arrays)), generation_(os::fork_generation()) {}

  bool done() const {
    if (!operation_->done()) {
      return false;
    }
    let_go();
    return true;
  }

  std::optional<Status> wait(double seconds) {
    if (!operation_->done()) {
      os::refuse_in_child(generation_);
      std::optional<engine::BlockedBy> blocked;
      if (std::isinf(seconds)) {
        blocked.emplace(operation_->handle());
      }
      const auto run_handlers = [&blocked] {
        return blocked.has_value() ? run_handlers_of_blocked() : PyErr_CheckSignals();
      };
      const bool finished = wait_in_slices(
          seconds, [this](std::chrono::nanoseconds longest) { return operation_->wait(longest); }, run_handlers);
      if (!finished) {
        return std::nullopt;
      }
    }
    let_go();
    return operation_->status();
  }

  void tell(const CompletionQueue& queue, std::uint64_t token) { operation_->tell(queue.shared(), token); }

  nb::ndarray<nb::memview, std::uint8_t> output() const {
    require_done();
    const nb::capsule owner(new std::shared_ptr<Operation>(operation_),
                            [](void* kept) noexcept { delete static_cast<std::shared_ptr<Operation>*>(kept); });
    static std::uint8_t nothing = 0;
    auto* bytes = operation_->output() != nullptr ? reinterpret_cast<std::uint8_t*>(operation_->output()) : &nothing;
    return nb::ndarray<nb::memview, std::uint8_t>(bytes, {operation_->output_bytes()}, owner);
  }

  std::vector<std::uint64_t> blocks() const {
    require_done();
    return operation_->blocks();
  }

  std::shared_ptr<engine::Course> course() const { return operation_->course(); }

  std::int64_t finished_at() const {
    require_done();
    return nanoseconds_at(operation_->finished_at());
  }

 private:
  void let_go() const {
    if (const auto arrays = arrays_.lock()) {
      arrays->erase(operation_->handle());
    }
  }

  void require_done() const {
    if (!operation_->done()) {
      throw std::runtime_error("the operation is not done yet; wait for it first");
    }
  }

  std::shared_ptr<Operation> operation_;
  std::weak_ptr<ArraysInFlight> arrays_;
  std::uint64_t generation_;
};

Handle submit(BoundEngine& bound, int collective, std::uint32_t group, std::string name, int op, int dtype,
              std::vector<std::int64_t> shape, std::vector<std::int64_t> splits, std::uint32_t root, nb::object input,
              nb::object output, double timeout, const Gate* gate) {
  Submission submission;
  submission.collective = static_cast<Collective>(collective);
  submission.group = group;
  submission.name = std::move(name);
  submission.op = static_cast<Operator>(op);
  submission.dtype = static_cast<DType>(dtype);
  submission.root = root;
  submission.shape = std::move(shape);
  submission.splits = std::move(splits);
  submission.timeout = std::max<Time>(nanoseconds_of(timeout).count(), 1);
  if (!input.is_none()) {
    const Array& array = nb::cast<const Array&>(input);
    if (!array.contiguous()) {
      throw std::invalid_argument("the input must be contiguous; pass a contiguous copy");
    }
    submission.input = array.address();
    submission.input_bytes = array.bytes();
  }
  if (!output.is_none()) {
    const Array& array = nb::cast<const Array&>(output);
    if (!array.contiguous() || array.readonly()) {
      throw std::invalid_argument("the output must be contiguous and writable");
    }
    submission.output = array.address();
    submission.output_bytes = array.bytes();
  }
  return Handle(bound.submit(std::move(submission), std::move(input), std::move(output), gate), bound.in_flight());
}

Handle submit_failed(BoundEngine& bound, std::uint32_t group, std::string name, std::string reason) {
  Submission submission;
  submission.group = group;
  submission.name = std::move(name);
  submission.timeout = 30 * second;
  submission.failure = reason.empty() ? std::string("failed before it began") : std::move(reason);
  return Handle(bound.submit(std::move(submission), nb::none(), nb::none(), nullptr), bound.in_flight());
}

// How many operations of the group the program has called since the last join, and those that are open.
std::tuple<std::uint64_t, std::vector<Handle>> join(BoundEngine& bound, std::uint32_t group, double timeout) {
  engine::note_call();
  engine::Called called;
  {
    const nb::gil_scoped_release released;
    called = bound.engine().join(group, std::max<Time>(nanoseconds_of(timeout).count(), 1));
  }
  std::vector<Handle> open;
  for (std::shared_ptr<Operation>& operation : called.open) {
    open.emplace_back(std::move(operation), bound.in_flight());
  }
  return {called.count, std::move(open)};
}

bool await_calls_for_others(BoundEngine& bound, std::uint32_t group, std::uint64_t count, double seconds) {
  return wait_in_slices(
      seconds,
      [&](std::chrono::nanoseconds longest) { return bound.engine().await_calls_for_others(group, count, longest); },
      PyErr_CheckSignals);
}

// A peer may have said it: it need not be UTF-8.
nb::str text_of(const std::string& text) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

void attach_returned(BoundEngine& bound, std::uint32_t index, std::uint32_t attempt, const nb::bytes& process,
                     Connection&& socket) {
  wire::ServerId id{};
  if (process.size() != id.size()) {
    throw std::invalid_argument("the id of a server has " + std::to_string(id.size()) + " bytes");
  }
  std::memcpy(id.data(), process.c_str(), id.size());
  const nb::gil_scoped_release released;
  bound.engine().attach_returned(index, attempt, id, std::move(socket));
}

std::optional<std::tuple<std::string, std::int32_t, nb::str, std::uint32_t>> next_event(BoundEngine& bound,
                                                                                        double seconds) {
  bound.let_go();
  auto event = wait_in_slices(
      seconds, [&](std::chrono::nanoseconds longest) { return bound.engine().next_event(longest); },
      PyErr_CheckSignals);
  if (!event.has_value()) {
    return std::nullopt;
  }
  return std::tuple(std::move(event->kind), event->index, text_of(event->text), event->attempt);
}

void close(BoundEngine& bound) {
  {
    const nb::gil_scoped_release released;
    bound.engine().close();
  }
  bound.let_go();
}

void abort(BoundEngine& bound, const std::string& reason) {
  {
    const nb::gil_scoped_release released;
    bound.engine().abort(reason);
  }
  bound.let_go();
}

// Bytes that live until no array needs them.
std::optional<nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>> allocate(BoundEngine& bound, std::size_t bytes,
                                                                          bool stays) {
  std::shared_ptr<std::byte> memory;
  {
    const nb::gil_scoped_release released;
    memory = bound.engine().allocate(bytes, stays);
  }
  if (memory == nullptr) {
    return std::nullopt;
  }
  auto* const owned = new std::shared_ptr<std::byte>(std::move(memory));
  const nb::capsule owner(owned, [](void* kept) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(kept); });
  return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(owned->get(), {bytes}, owner);
}

// A method of the native engine that may wait for its thread.
template <class Result, class... Arguments>
auto without_gil(Result (engine::Engine::*method)(Arguments...)) {
  return [method](BoundEngine& bound, Arguments... arguments) {
    const nb::gil_scoped_release released;
    return (bound.engine().*method)(std::move(arguments)...);
  };
}

void open_door(BoundEngine& bound, std::string here, double timeout, std::uint32_t members, std::uint32_t index) {
  const nb::gil_scoped_release released;
  doors::open({&bound.engine(), std::move(here), nanoseconds_of(timeout).count(), {members, index}});
}

void finish_at_exit(nb::handle self, std::string reason) {
  engine::finish_at_exit(nb::cast<BoundEngine&>(self).engine(), std::move(reason));
  self.inc_ref();  // the engine outlives the interpreter
}

JobConfig make_config(std::vector<std::string> hosts, std::vector<std::string> server_names,
                      std::vector<std::int32_t> server_ranks, std::vector<std::uint32_t> weights, std::uint32_t segment,
                      std::uint32_t credit, std::uint32_t eager, std::uint32_t small, std::uint32_t least_shard,
                      std::uint32_t least_segment, std::uint32_t peer_timeout, bool ring, std::uint64_t rate,
                      bool standby, std::vector<std::uint32_t> leaders, std::uint32_t rank_segment,
                      std::uint32_t rank_credit, std::uint32_t lanes, std::uint32_t networks, std::uint32_t channels) {
  JobConfig config{std::move(hosts),
                   std::move(server_names),
                   std::move(server_ranks),
                   std::move(weights),
                   segment,
                   credit,
                   eager,
                   small,
                   least_shard,
                   least_segment,
                   ring,
                   rate,
                   standby,
                   std::move(leaders),
                   peer_timeout,
                   rank_segment,
                   rank_credit,
                   lanes,
                   networks,
                   channels};
  if (const std::string problem = problem_with(config); !problem.empty()) {
    throw std::invalid_argument(problem);
  }
  return config;
}

}  // namespace

void bind_engine(nb::module_& module) {
  module.def("caller_threads", &engine::threads_of_callers);
  module.def("note_call", &engine::note_call);
  module.def("count_callbacks", &engine::count_callbacks, "more"_a);

  nb::class_<Status>(module, "Status")
      .def_prop_ro("code", [](const Status& status) { return static_cast<int>(status.code); })
      .def_prop_ro("rank", [](const Status& status) { return status.rank; })
      .def_prop_ro("message", [](const Status& status) { return text_of(status.message); })
      .def("__repr__", [](const Status& status) {
        return "Status(code=" + std::to_string(static_cast<int>(status.code)) +
               ", rank=" + std::to_string(status.rank) + ", message='" + status.message + "')";
      });

  nb::class_<engine::Course>(module, "Course")
      .def("ended", &engine::Course::has_ended)
      .def("occurrence", &engine::Course::occurrence)
      .def("code", [](const engine::Course& course) { return static_cast<int>(ended(course).code()); })
      .def("moments", &moments_of);

  nb::class_<CompletionQueue>(module, "Completions")
      .def(nb::init<>())
      .def("next", &CompletionQueue::next, "seconds"_a)
      .def("add", &CompletionQueue::add, "token"_a)
      .def("close", &CompletionQueue::close);

  nb::class_<Handle>(module, "Handle")
      .def("done", &Handle::done)
      .def("wait", &Handle::wait, "seconds"_a)
      .def("tell", &Handle::tell, "completions"_a, "token"_a)
      .def("output", &Handle::output)
      .def("blocks", &Handle::blocks)
      .def("course", &Handle::course)
      .def("finished_at", &Handle::finished_at);

  nb::class_<JobConfig>(module, "JobConfig")
      .def(nb::new_(&make_config), nb::kw_only(), "hosts"_a, "server_names"_a, "server_ranks"_a, "weights"_a,
           "segment"_a, "credit"_a, "eager"_a, "small"_a, "least_shard"_a, "least_segment"_a, "peer_timeout"_a,
           "ring"_a = false, "rate"_a = 0, "standby"_a = false, "leaders"_a = std::vector<std::uint32_t>(),
           "rank_segment"_a = 0, "rank_credit"_a = 0, "lanes"_a = 1, "networks"_a = 1, "channels"_a = 1);

  nb::class_<BoundEngine>(module, "Engine")
      .def(nb::init<std::uint32_t, const JobConfig&>(), "rank"_a, "config"_a)
      .def("attach_coordinator", without_gil(&engine::Engine::attach_coordinator), "channel"_a, "socket"_a)
      .def("attach_control", without_gil(&engine::Engine::attach_control), "channel"_a, "rank"_a, "socket"_a)
      .def("attach_server", without_gil(&engine::Engine::attach_server), "index"_a, "socket"_a)
      .def("attach_worker", without_gil(&engine::Engine::attach_worker), "index"_a, "rank"_a, "socket"_a)
      .def("attach_peer", without_gil(&engine::Engine::attach_peer), "rank"_a, "socket"_a)
      .def("peer_unreachable", without_gil(&engine::Engine::peer_unreachable), "rank"_a, "message"_a)
      .def("attach_returned", &attach_returned, "index"_a, "attempt"_a, "process"_a, "socket"_a)
      .def("server_unreachable", without_gil(&engine::Engine::server_unreachable), "server"_a, "attempt"_a)
      .def(
          "share_memory",
          [](BoundEngine& bound, const MemoryInPython& memory) { bound.engine().share_memory(memory.memory); },
          "memory"_a)
      .def("start", without_gil(&engine::Engine::start))
      .def("note_threads", without_gil(&engine::Engine::note_threads), "attempt"_a, "strangers"_a)
      .def("allocate", &allocate, "nbytes"_a, "stays"_a)
      .def("make_group", without_gil(&engine::Engine::make_group), "ranks"_a, "name"_a)
      .def("submit", &submit, "collective"_a, "group"_a, "name"_a, "op"_a, "dtype"_a, "shape"_a, "splits"_a, "root"_a,
           "input"_a.none(), "output"_a.none(), "timeout"_a, "gate"_a.none() = nb::none())
      .def("submit_failed", &submit_failed, "group"_a, "name"_a, "reason"_a)
      .def("join", &join, "group"_a, "timeout"_a)
      .def(
          "calls_for_others",
          [](BoundEngine& bound, std::uint32_t group) { return bound.engine().calls_for_others(group); }, "group"_a)
      .def("await_calls_for_others", &await_calls_for_others, "group"_a, "count"_a, "seconds"_a)
      .def("end_join", without_gil(&engine::Engine::end_join), "group"_a)
      .def("next_event", &next_event, "seconds"_a)
      .def("leave", without_gil(&engine::Engine::leave))
      .def("left", [](BoundEngine& bound) { return bound.engine().left(); })
      .def("serves", [](BoundEngine& bound) { return bound.engine().serves(); })
      .def("has_losses", [](BoundEngine& bound) { return bound.engine().has_losses(); })
      .def(
          "loss_of_rank", [](BoundEngine& bound, std::uint32_t rank) { return bound.engine().loss_of_rank(rank); },
          "rank"_a)
      .def("abort", &abort, "reason"_a)
      .def("close", &close)
      .def("finish_at_exit", &finish_at_exit, "reason"_a)
      .def("open_door", &open_door, "here"_a, "timeout"_a, "members"_a, "index"_a)
      .def(
          "record", [](BoundEngine& bound, bool on) { bound.engine().record(on); }, "on"_a)
      .def("statistics", [](BoundEngine& bound) { return bound.engine().statistics(); });
}

}  // namespace shoal::python
