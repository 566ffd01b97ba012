// The door of this process for frameworks that call operations from C++ (doors/door.h), and what averages gradients
// there.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/completions.h"
#include "doors/averager.h"
#include "doors/door.h"
#include "doors/gradient_plan.h"
#include "doors/table.h"

namespace shoal::python {

namespace {

using namespace nb::literals;
using doors::Averager;
using doors::GradientPlan;
using doors::Pass;

std::int64_t add_group(std::uint32_t group, std::uint32_t members, std::uint32_t index, double timeout) {
  const nb::gil_scoped_release released;
  return doors::add_group(group, {members, index}, nanoseconds_of(timeout).count());
}

std::pair<std::uint32_t, std::uint32_t> place(std::int64_t group) {
  const doors::Place found = doors::place(group);
  return {found.members, found.index};
}

GradientPlan make_plan(
    const std::vector<std::tuple<int, std::size_t>>& arenas,
    const std::vector<std::tuple<std::uint32_t, std::size_t, std::size_t, std::uint32_t, std::uint32_t>>& places,
    std::vector<std::tuple<std::string, std::uint32_t, std::size_t, std::size_t>> buffers,
    std::vector<std::uint8_t> votes, std::string end_label) {
  GradientPlan plan;
  for (const auto& [dtype, bytes] : arenas) {
    plan.arenas.push_back({static_cast<DType>(dtype), bytes});
  }
  for (const auto& [arena, begin, bytes, first_buffer, end_buffer] : places) {
    plan.places.push_back({arena, begin, bytes, first_buffer, end_buffer});
  }
  for (auto& [label, arena, begin, end] : buffers) {
    plan.buffers.push_back({std::move(label), arena, begin, end});
  }
  plan.votes = std::move(votes);
  plan.end_label = std::move(end_label);
  return plan;
}

struct PassInPython {
  std::shared_ptr<Pass> pass;
};

// Known to graphs by its number as long as Python has it.
class BoundAverager {
 public:
  BoundAverager(std::string prefix, std::int64_t group, int op, const GradientPlan& plan, const CompletionQueue& queue,
                std::uint64_t token)
      : averager_(std::make_shared<Averager>(Pass::Terms{std::move(prefix), group, static_cast<Operator>(op)}, plan,
                                             queue.shared(), token)),
        number_(doors::add_averager(averager_)) {}
  BoundAverager(const BoundAverager&) = delete;
  BoundAverager& operator=(const BoundAverager&) = delete;
  ~BoundAverager() { doors::remove_averager(number_); }

  std::int64_t number() const { return number_; }

  // None; or the pass whose ranks disagree; or whether a step has ended well, and how its gradients came.
  nb::object next_event() {
    std::optional<Averager::Event> event = averager_->next_event();
    if (!event.has_value()) {
      return nb::none();
    }
    if (event->kind == Averager::Event::Kind::disagreed) {
      return nb::cast(PassInPython{std::move(event->pass)});
    }
    return nb::cast(std::pair(event->well, std::move(event->arrivals)));
  }

  void let_memory_go() { averager_->let_memory_go(); }

  void arrange(const std::optional<GradientPlan>& plan) {
    const nb::gil_scoped_release released;
    averager_->arrange(plan);
  }

 private:
  const std::shared_ptr<Averager> averager_;
  const std::int64_t number_;
};

void explain(const PassInPython& disagreed, std::string how) {
  const nb::gil_scoped_release released;
  disagreed.pass->explain(std::move(how));
}

}  // namespace

void bind_doors(nb::module_& module) {
  module.def("add_door_group", &add_group, "group"_a, "members"_a, "index"_a, "timeout"_a);
  module.def("door_place", &place, "group"_a);
  module.def("door_table", [] { return reinterpret_cast<std::uintptr_t>(&doors::table()); });
  nb::class_<GradientPlan>(module, "GradientPlan")
      .def(nb::new_(&make_plan), nb::kw_only(), "arenas"_a, "places"_a, "buffers"_a, "votes"_a, "end_label"_a);
  nb::class_<PassInPython>(module, "DisagreeingPass").def("explain", &explain, "how"_a);
  nb::class_<BoundAverager>(module, "GradientAverager")
      .def(nb::init<std::string, std::int64_t, int, const GradientPlan&, const CompletionQueue&, std::uint64_t>(),
           "prefix"_a, "group"_a, "op"_a, "plan"_a, "completions"_a, "token"_a)
      .def_prop_ro("number", &BoundAverager::number)
      .def("next_event", &BoundAverager::next_event)
      .def("arrange", &BoundAverager::arrange, "plan"_a.none())
      .def("let_memory_go", &BoundAverager::let_memory_go);
}

}  // namespace shoal::python
