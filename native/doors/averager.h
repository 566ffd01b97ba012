// Averages the gradients of one model, step after step, for a framework that calls from C++.
//
// In the first step nobody knows in which order gradients come. When it has ended, Python is told (Event::order): it
// agrees on an order with the other ranks and hands over the plan for it (arrange). Until then steps do not overlap.
//
// Promises:
//   * A step begins with the same plan on every rank, if every rank's steps begin in the same order.
//   * Memory of an arena is used again once nothing has it any more.
//
// Every method may be called by any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "doors/gradient_plan.h"
#include "doors/pass.h"
#include "engine/completions.h"

namespace shoal::doors {

class Averager : public std::enable_shared_from_this<Averager> {
 public:
  // What Python has to do.
  struct Event {
    enum class Kind { order, disagreed } kind = Kind::order;
    bool well = false;                   // order: the step has ended well
    std::vector<std::int64_t> arrivals;  // order: its gradients as they came
    std::shared_ptr<Pass> pass;          // disagreed: to be explained
  };
  // The pass, or null and why there is none.
  using Begun = std::function<void(std::shared_ptr<Pass>, const std::string& problem)>;

  // Python's completions, which get `token` for each event. Throws std::invalid_argument for an impossible plan.
  Averager(Pass::Terms terms, GradientPlan plan, std::shared_ptr<engine::Completions> completions, std::uint64_t token);

  // Steps that wait for it fail, and those of which ranks disagree end.
  ~Averager();
  Averager(const Averager&) = delete;
  Averager& operator=(const Averager&) = delete;

  void begin(Begun begun);
  std::optional<Event> next_event();
  // After Event::order: the plan from now on; none: the one so far, and the next step shows the order.
  void arrange(std::optional<GradientPlan> plan);
  // Gives back the memory that is kept for the next steps.
  void let_memory_go();

 private:
  void start(const Begun& begun);
  void tell(Event event);
  void over(bool well, std::vector<std::int64_t> arrivals);
  void take_back(const std::shared_ptr<const GradientPlan>& plan, Arenas arenas);
  Arenas arenas_for(const std::shared_ptr<const GradientPlan>& plan);

  const Pass::Terms terms_;
  const std::shared_ptr<engine::Completions> completions_;
  const std::uint64_t token_;

  std::mutex mutex_;
  // All guarded by mutex_.
  std::shared_ptr<const GradientPlan> plan_;
  bool knows_order_ = false;
  bool first_goes_on_ = false;  // a step without a known order, until arrange()
  std::deque<Begun> waiting_;   // for that
  std::deque<Event> events_;
  std::vector<Arenas> free_;  // of plan_
};

// Why a step of one that is no more has not begun.
inline const char* const averager_gone =
    "what averages these gradients has gone: trace the function again after shoal.init()";

// The averagers of this process, by number. A framework's graphs know them by it.
std::int64_t add_averager(std::shared_ptr<Averager> averager);
// Null: there is none, or it has gone.
std::shared_ptr<Averager> find_averager(std::int64_t number);
void remove_averager(std::int64_t number);

}  // namespace shoal::doors
