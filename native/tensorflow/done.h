// What an asynchronous kernel calls when it is done, kept beyond its compute function.
//
// The C API hands a kernel the address of a std::function<void()> that dies when compute returns, though it is made for
// kernels that are done later. So the function is moved out of there, by the layout that it has in libstdc++, with which
// all of TensorFlow's wheels for Linux are built. This file may be compiled with another library.
//
// Promises:
//   * It is moved only where its words are those of that layout: functions of TensorFlow's own libraries where the two
//     functions belong. Otherwise is_kept() is false, and the kernel has to wait within compute (slow, but right).
//   * The first time that this happens a warning goes to standard error.
#pragma once

#include <utility>

#include "tensorflow/api.h"

namespace shoal::tensorflow {

class Done {
 public:
  // Within compute.
  explicit Done(TF_AsyncOpKernelDoneCallback* given);
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  Done(Done&& other) noexcept
      : given_(std::exchange(other.given_, nullptr)), kept_(std::exchange(other.kept_, Function())) {}
  Done& operator=(Done&&) = delete;
  ~Done();

  // Whether it may be called after compute has returned.
  bool is_kept() const { return kept_.manager != nullptr; }
  // Once. The kernel's context is gone after it.
  void operator()();

  // For tests: as if TensorFlow had been built with another layout.
  static void distrust(bool on);

 private:
  // std::function<void()> of libstdc++. Its functor is in `words`, or they have its address: either way it may be moved.
  struct Function {
    void* words[2] = {};
    bool (*manager)(void* to, const void* from, int what) = nullptr;
    void (*invoker)(const void* words) = nullptr;
  };

  TF_AsyncOpKernelDoneCallback* given_;
  Function kept_;
};

}  // namespace shoal::tensorflow
