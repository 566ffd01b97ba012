// Fails where this rank is not who the program was compiled for: for what was computed with that when it was traced.
#include <memory>
#include <string>

#include "doors/table.h"
#include "xla/execution.h"
#include "xla/handlers.h"

namespace shoal::xla {

namespace {

class Check final : public Execution {
 public:
  using Execution::Execution;

  void start() {
    const std::unique_ptr<Check> self(this);
    doors::Place found;
    std::string why;
    if (core()->place(group, expected, &found, doors::sink_of(why))) {
      succeed();
    } else {
      fail(Problem::failed_precondition, described() + ": " + why);
    }
  }
};

}  // namespace

Error* place(Frame* frame) { return Execution::run<Check>(frame); }

}  // namespace shoal::xla
