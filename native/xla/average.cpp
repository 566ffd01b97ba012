// The averaging of a step's gradients (doors/pass.h) as one call: all of them are operands, their averages the results.
//
// One call, since a program of small arrays runs its calls one after the other, in an order of its own.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "doors/table.h"
#include "xla/execution.h"
#include "xla/handlers.h"

namespace shoal::xla {

namespace {

class Average final : public Execution {
 public:
  using Execution::Execution;
  ~Average() {
    if (pass_ != nullptr) {
      core()->let_go_of_pass(pass_, true);
    }
  }

  void start() {
    core()->begin_pass(
        averager,
        [](void* self, void* pass, const char* problem) { static_cast<Average*>(self)->begun(pass, problem); }, this);
  }

 private:
  void begun(void* pass, const char* problem) {
    std::unique_ptr<Average> self(this);
    if (pass == nullptr) {
      fail(Problem::failed_precondition, described() + ": " + problem);
      return;
    }
    pass_ = pass;
    // They are expected to come from the last.
    for (std::size_t index = operands.size(); index-- > 0;) {
      std::string why;
      if (!core()->gradient_ready(pass_, static_cast<std::uint32_t>(index), operands[index].data, operands[index].bytes,
                                  doors::sink_of(why))) {
        fail(Problem::invalid_argument, why);
        return;
      }
    }
    core()->finish_pass(
        pass_, [](void* given, const doors::End* end) { static_cast<Average*>(given)->finished(*end); },
        self.release());
  }

  void finished(const doors::End& end) {
    const std::unique_ptr<Average> self(this);
    if (end.code != 0) {
      fail(problem_of(end.code), end.message);
      return;
    }
    for (std::size_t index = 0; index < results.size(); ++index) {
      if (results[index].bytes > 0) {
        std::memcpy(results[index].data, core()->averaged(pass_, static_cast<std::uint32_t>(index)),
                    results[index].bytes);
      }
    }
    succeed();
  }

  void* pass_ = nullptr;
};

}  // namespace

Error* average(Frame* frame) { return Execution::run<Average>(frame); }

}  // namespace shoal::xla
