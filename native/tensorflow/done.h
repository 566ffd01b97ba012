// What an asynchronous kernel calls when it is done, kept beyond its compute function.
//
// The C API hands a kernel the address of a std::function<void()> that dies when compute returns, though it is made for
// kernels that are done later. So the function is moved out of there, by the layout that it has in libstdc++, with
// which all of TensorFlow's wheels for Linux are built. This file may be compiled with another library.
//
// Promises:
//   * It is moved only where its words are those of that layout: functions of TensorFlow's own libraries where the two
//     functions belong. Otherwise compute waits for the end in the thread that TensorFlow gave it: slow, but right.
//   * The first time that this happens a warning goes to standard error.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "tensorflow/api.h"

namespace shoal::tensorflow {

class Done {
 public:
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  Done(Done&& other) noexcept : kept_(std::exchange(other.kept_, Function())), wait_(std::move(other.wait_)) {}
  Done& operator=(Done&&) = delete;
  ~Done();

  // Once, by any thread. The kernel's context is gone after it.
  void operator()();

  // Within compute: hands `start` what is to be called at the end, then or later.
  template <class Start>
  static void until_ended(TF_AsyncOpKernelDoneCallback* given, Start start) {
    Done done(given);
    const std::shared_ptr<Wait> wait = done.wait_;
    start(std::move(done));
    if (wait != nullptr) {
      wait->wait();
      api().RunAsyncOpKernelDoneCallback(given);
    }
  }

  // For tests: as if TensorFlow had been built with another layout.
  static void distrust(bool on);

 private:
  // std::function<void()> of libstdc++. Its functor is in the words, or they have its address: either way they may be
  // moved.
  struct Words {
    void* of_functor[2] = {};
  };
  struct Function {
    Words words;
    bool (*manager)(Words* to, const Words* from, int what) = nullptr;
    void (*invoker)(const Words* words) = nullptr;
  };

  class Wait {
   public:
    void end() {
      {
        const std::lock_guard lock(mutex_);
        over_ = true;
      }
      changed_.notify_all();
    }
    void wait() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return over_; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;  // guarded by mutex_
  };

  explicit Done(TF_AsyncOpKernelDoneCallback* given);

  Function kept_;
  std::shared_ptr<Wait> wait_;  // where it could not be moved
};

}  // namespace shoal::tensorflow
