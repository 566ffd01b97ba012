// File descriptors that do not survive a fork.
//
// Promises:
//   * A Descriptor owns one descriptor and closes it when it goes.
//   * A child made by fork() holds none of them. A forked data loader that kept a socket would keep the connection open
//     after this process has died, and nobody would notice.
//   * In such a child the parent's objects are inert: closing them there touches nothing.
#pragma once

#include <cstdint>
#include <utility>

namespace shoal::os {

// How many forks led to this process since the library was loaded. Objects that own threads or descriptors remember it:
// if it has changed, this is a child, where their threads do not exist and their descriptors are closed.
std::uint64_t fork_generation();

class Descriptor {
 public:
  Descriptor() = default;
  // Takes ownership, and makes it close-on-exec.
  explicit Descriptor(int number);
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept { swap(other); }
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor gone(std::move(other));
    swap(gone);
    return *this;
  }
  ~Descriptor() { reset(); }

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void reset();

 private:
  void swap(Descriptor& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(generation_, other.generation_);
  }

  int number_ = -1;
  std::uint64_t generation_ = 0;
};

}  // namespace shoal::os
