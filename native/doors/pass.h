// One averaging of a step's gradients, of a framework that brings them from C++, one by one, from any thread.
//
//   begin    the ranks compare what gradients they have and where they lie, while the first ones are computed
//   ready    a gradient is copied to its place; a buffer that has all of its gradients is submitted
//   finish   once all are ready: ends when every operation has ended
//
// Promises:
//   * Every rank opens the same operations, each once, with its data or as failed. A step that breaks off (abandon)
//     opens what is not open yet as failed, so no other rank waits for it.
//   * After a finish() that has ended well, the mean of gradient n is at slot(n) as long as the pass lives.
//   * No lock is held while the core or the framework is called.
//
// Every method may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "doors/gradient_plan.h"

namespace shoal::doors {

// Memory for all arenas of a plan.
using Arenas = std::vector<std::shared_ptr<std::byte>>;

class Pass : public std::enable_shared_from_this<Pass> {
 public:
  struct Terms {
    std::string prefix;      // of the operations' names
    std::int64_t group = 0;  // the door's number
    Operator op = Operator::mean;
  };
  // What the averager wants to hear. Each is called once at most, `over` always.
  struct Hooks {
    // The ranks' plans differ, which every rank finds. The pass ends after explain().
    std::function<void(const std::shared_ptr<Pass>&)> disagreed;
    // It has ended, `well` or not. `arrivals`: the gradients as they came.
    std::function<void(bool well, std::vector<std::int64_t> arrivals)> over;
    // The arenas are free.
    std::function<void(Arenas)> free;
  };
  using Finished = std::function<void(const Status&)>;

  Pass(Terms terms, std::shared_ptr<const GradientPlan> plan, Arenas arenas, Hooks hooks);
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass();

  // In the place of a pass for which there is no memory.
  static void fail(const Terms& terms, const GradientPlan& plan, const std::string& why);

  void begin();
  // Not ok(): it cannot be of this pass, and nothing was done.
  Status ready(std::uint32_t gradient, const void* data, std::size_t bytes);
  // `finished` is called once, on this thread or another.
  void finish(Finished finished);
  // The step is over. If it was not finished, it has failed.
  void abandon();
  // After Hooks::disagreed: how the plans differ, for people.
  void explain(std::string how);

  std::byte* slot(std::uint32_t gradient) const;

 private:
  void compared(const Status& status);
  void submit(const std::vector<std::uint32_t>& buffers);
  void open_as_failed(const std::string& why);
  void ended(const Status& status);
  void look_for_end();

  const Terms terms_;
  const std::shared_ptr<const GradientPlan> plan_;
  Arenas arenas_;
  const Hooks hooks_;
  std::vector<std::uint8_t> votes_;  // of all ranks, when they have been compared

  std::mutex mutex_;
  // All guarded by mutex_.
  std::vector<std::uint32_t> unready_;  // by buffer: gradients that have not come; it is opened when there are none
  std::vector<bool> opened_;            // by buffer
  std::vector<bool> came_;              // by gradient
  std::size_t going_on_ = 0;            // operations, and an explanation that is awaited
  std::vector<std::int64_t> arrivals_;
  Status failure_;
  Finished finished_;
  bool is_abandoned_ = false;
  bool is_over_ = false;
};

}  // namespace shoal::doors
