// Keeps an object of the parent's from being used in a forked child.
//
// A thread that was at work while another one forked does not exist in the child, and may have left objects half
// changed there. So a child neither uses nor destroys them: their memory is left as it is.
#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

#include "os/descriptor.h"

namespace shoal::os {

inline void refuse_in_child(std::uint64_t generation) {
  if (generation != fork_generation()) {
    throw std::runtime_error(
        "this process was forked from one that uses Shoal, and has no part in its job; call shoal.init() in the child "
        "to make it a rank of its own, or use Shoal in the parent only");
  }
}

template <class Owned>
class ForkGuard {
 public:
  explicit ForkGuard(std::unique_ptr<Owned> owned) : owned_(std::move(owned)), generation_(fork_generation()) {}
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard() {
    if (in_child()) {
      [[maybe_unused]] const Owned* forgotten = owned_.release();
    }
  }

  bool in_child() const { return generation_ != fork_generation(); }

  // Throws std::runtime_error in a child.
  Owned* operator->() const {
    refuse_in_child(generation_);
    return owned_.get();
  }

 private:
  std::unique_ptr<Owned> owned_;
  std::uint64_t generation_;
};

}  // namespace shoal::os
