#include "doors/averager.h"

#include <map>
#include <new>
#include <stdexcept>
#include <utility>

#include "doors/door.h"

namespace shoal::doors {

namespace {

// Passes that end at the same time, and the one that has begun.
constexpr std::size_t kept_arenas = 2;

std::shared_ptr<const GradientPlan> checked(GradientPlan plan) {
  if (std::string problem = problem_with(plan); !problem.empty()) {
    throw std::invalid_argument(problem);
  }
  return std::make_shared<const GradientPlan>(std::move(plan));
}

}  // namespace

Averager::Averager(Pass::Terms terms, GradientPlan plan, std::shared_ptr<engine::Completions> completions,
                   std::uint64_t token)
    : terms_(std::move(terms)), completions_(std::move(completions)), token_(token), plan_(checked(std::move(plan))) {}

Averager::~Averager() {
  for (const Begun& begun : waiting_) {
    begun(nullptr, averager_gone);
  }
  for (const Event& event : events_) {
    if (event.pass != nullptr) {
      event.pass->explain("the ranks do not have the same gradients");
    }
  }
}

void Averager::begin(Begun begun) {
  {
    const std::lock_guard lock(mutex_);
    if (first_goes_on_) {
      waiting_.push_back(std::move(begun));
      return;
    }
    first_goes_on_ = !knows_order_;
  }
  start(begun);
}

void Averager::start(const Begun& begun) {
  std::shared_ptr<const GradientPlan> plan;
  {
    const std::lock_guard lock(mutex_);
    plan = plan_;
  }
  Arenas arenas;
  try {
    arenas = arenas_for(plan);
  } catch (const std::exception& error) {
    const std::string why = std::string("there is no memory for its gradients: ") + error.what();
    Pass::fail(terms_, *plan, why);
    over(false, {});
    begun(nullptr, why);
    return;
  }
  // A pass may outlive it: arrays of the framework have its memory.
  const std::weak_ptr<Averager> self = weak_from_this();
  Pass::Hooks hooks;
  hooks.disagreed = [self](const std::shared_ptr<Pass>& pass) {
    if (const std::shared_ptr<Averager> averager = self.lock()) {
      averager->tell({Event::Kind::disagreed, false, {}, pass});
    } else {
      pass->explain("the ranks do not have the same gradients");
    }
  };
  hooks.over = [self](bool well, std::vector<std::int64_t> arrivals) {
    if (const std::shared_ptr<Averager> averager = self.lock()) {
      averager->over(well, std::move(arrivals));
    }
  };
  hooks.free = [self, plan](Arenas back) {
    if (const std::shared_ptr<Averager> averager = self.lock()) {
      averager->take_back(plan, std::move(back));
    }
  };
  const auto pass = std::make_shared<Pass>(terms_, plan, std::move(arenas), std::move(hooks));
  pass->begin();
  begun(pass, "");
}

// A step has ended. If the order was not known, those that wait for it go on after arrange().
void Averager::over(bool well, std::vector<std::int64_t> arrivals) {
  {
    const std::lock_guard lock(mutex_);
    if (knows_order_) {
      return;
    }
  }
  tell({Event::Kind::order, well, std::move(arrivals), nullptr});
}

void Averager::tell(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  completions_->add(token_);
}

std::optional<Averager::Event> Averager::next_event() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) {
    return std::nullopt;
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Averager::arrange(std::optional<GradientPlan> plan) {
  std::shared_ptr<const GradientPlan> next = plan.has_value() ? checked(std::move(*plan)) : nullptr;
  std::deque<Begun> going_on;
  {
    const std::lock_guard lock(mutex_);
    if (next != nullptr) {
      plan_ = std::move(next);
      free_.clear();
      knows_order_ = true;
      going_on.swap(waiting_);
    } else if (!waiting_.empty()) {  // one, which shows the order
      going_on.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    first_goes_on_ = !knows_order_ && !going_on.empty();
  }
  for (const Begun& begun : going_on) {
    start(begun);
  }
}

void Averager::let_memory_go() {
  std::vector<Arenas> gone;  // after the lock
  const std::lock_guard lock(mutex_);
  gone.swap(free_);
}

void Averager::take_back(const std::shared_ptr<const GradientPlan>& plan, Arenas arenas) {
  const std::lock_guard lock(mutex_);
  if (plan == plan_ && free_.size() < kept_arenas) {
    free_.push_back(std::move(arenas));
  }
}

Arenas Averager::arenas_for(const std::shared_ptr<const GradientPlan>& plan) {
  {
    const std::lock_guard lock(mutex_);
    if (plan == plan_ && !free_.empty()) {
      Arenas arenas = std::move(free_.back());
      free_.pop_back();
      return arenas;
    }
  }
  Arenas arenas;
  for (const GradientPlan::Arena& arena : plan->arenas) {
    arenas.push_back(allocate(arena.bytes));
  }
  return arenas;
}

// --- By number ---

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<Averager>> averagers;  // guarded by mutex
};

Registry& registry() {
  static auto* const the_registry = new Registry();
  return *the_registry;
}

}  // namespace

std::int64_t add_averager(std::shared_ptr<Averager> averager) {
  const std::lock_guard lock(registry().mutex);
  const std::int64_t number = fresh_number();
  registry().averagers[number] = std::move(averager);
  return number;
}

std::shared_ptr<Averager> find_averager(std::int64_t number) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().averagers.find(number);
  return found == registry().averagers.end() ? nullptr : found->second;
}

void remove_averager(std::int64_t number) {
  std::shared_ptr<Averager> gone;  // after the lock
  const std::lock_guard lock(registry().mutex);
  if (const auto found = registry().averagers.find(number); found != registry().averagers.end()) {
    gone = std::move(found->second);
    registry().averagers.erase(found);
  }
}

}  // namespace shoal::doors
