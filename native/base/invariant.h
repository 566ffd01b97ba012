// Invariants: what holds of a class's own state between two events, whatever the network delivers.
//
// Each class of protocol/ states them at the top of its header and checks them in check_invariants(). Tests, the
// simulation and builds with sanitizers (SHOAL_CHECKED) call that after each event; other builds never do.
#pragma once

#include <stdexcept>
#include <string>

namespace shoal {

class InvariantViolated : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void throw_violated(const char* condition, const char* file, int line) {
  throw InvariantViolated(std::string(file) + ":" + std::to_string(line) + ": violated: " + condition);
}

}  // namespace shoal

#define SHOAL_INVARIANT(condition) ((condition) ? void() : shoal::throw_violated(#condition, __FILE__, __LINE__))
