// One execution of a handler: what it is given, and its end.
//
// Promises:
//   * It ends once, well or with an error that has the core's whole message.
//   * None of XLA's threads waits, where its version can go on later; otherwise the one that called does.
//   * What a frame has is copied from there: XLA uses frames again when the handler has returned.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"
#include "doors/table.h"
#include "xla/ffi.h"

namespace shoal::xla {

// The core's functions. Null until the module _native has handed them over.
const doors::Table* core();
void set_core(const doors::Table* table);

// Numbers of XLA's for what went wrong.
enum class Problem : int { unknown = 2, invalid_argument = 3, failed_precondition = 9 };
// Of base/status.h: which of those it is.
Problem problem_of(int code);

struct View {
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class Execution {
 public:
  explicit Execution(const Frame& frame);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Operands and results without what the program orders calls by: a last operand, if there is one, and the last
  // result.
  std::vector<View> operands;
  std::vector<View> results;
  std::string kind;  // for messages, where it is none of the collectives
  std::string name;
  std::int64_t group = 0;
  std::int64_t op = 0;
  std::int64_t root = 0;
  std::int64_t averager = 0;
  // What the program was compiled for, where that decides over its results.
  doors::ExpectedPlace expected;

  // Once, by any thread. What follows in the program may run before they return.
  void succeed();
  void fail(Problem problem, const std::string& message);

  // For messages: its kind and name, and this rank.
  std::string described() const;

  // A handler: `Kind` is an Execution with a constructor from a Frame, and start(), from which on it ends and deletes
  // itself, then or later.
  template <class Kind>
  static Error* run(Frame* frame) {
    if (answered_for_version(frame)) {
      return nullptr;
    }
    if (core() == nullptr) {
      return error(*frame->api, Problem::failed_precondition, "Shoal's calls are in a program without Shoal");
    }
    auto* const execution = new Kind(*frame);
    const std::shared_ptr<Wait> wait = execution->promise(frame);
    execution->start();
    return wait == nullptr ? nullptr : wait->wait();
  }

  // For tests: as if XLA had no futures.
  static void distrust(bool on);
  // For tests: how many calls have ended, or will, by a future.
  static std::int64_t futures_made();

 protected:
  ~Execution() = default;

 private:
  // For the end, where there is no future.
  class Wait {
   public:
    void end(Error* error) {
      {
        const std::lock_guard lock(mutex_);
        error_ = error;
        is_over_ = true;
      }
      changed_.notify_all();
    }
    Error* wait() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_over_; });
      return error_;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_.
    bool is_over_ = false;
    Error* error_ = nullptr;
  };

  static bool answered_for_version(Frame* frame);
  static Error* error(const Api& api, Problem problem, const std::string& message);
  std::shared_ptr<Wait> promise(Frame* frame);
  void end(Error* error);

  const Api* const api_;
  Future* future_ = nullptr;
  std::shared_ptr<Wait> wait_;
};

}  // namespace shoal::xla
