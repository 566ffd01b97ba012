// A stand-in for CUDA's driver library, for tests on machines without a GPU: the memory of the host is the device's
// too, and each stream is a thread.
//
// What a stream is asked for is done later, in the order of that stream and of no other, copies after a pause. The
// memory of the host that a copy will fill holds garbage until it has. So whoever reads or writes without having waited
// for what it should finds it out, and so do sanitizers. Calls without a context of the device fail, as they do on one.
#include "cuda_stand_in.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Result = int;
using DevicePointer = std::uint64_t;

constexpr Result success = 0;
constexpr Result invalid_value = 1;
constexpr Result invalid_context = 201;
constexpr Result not_found = 500;
constexpr Result not_ready = 600;
constexpr Result illegal_address = 700;
constexpr Result already_registered = 712;
constexpr Result not_registered = 713;
constexpr int garbage = 0xa5;
constexpr int version = 13'000;
int context;  // its address is the context

// --- What was configured, and what was counted ---

struct Tests {
  std::mutex mutex;
  std::mt19937_64 random{1};                       // guarded by mutex
  unsigned shortest_pause = 0;                     // guarded by mutex
  unsigned longest_pause = 0;                      // guarded by mutex
  bool one_queue = false;                          // guarded by mutex
  std::map<std::string, Result> failures;          // guarded by mutex
  std::map<std::string, std::uint64_t> calls;      // guarded by mutex
  std::map<const std::byte*, std::size_t> pinned;  // guarded by mutex
  std::uint64_t forbidden = 0;                     // guarded by mutex
  std::uint64_t pageable = 0;                      // guarded by mutex
};

// Never destroyed: threads of streams use it until the process ends.
Tests& tests() {
  static auto* const instance = new Tests();
  return *instance;
}

void pause() {
  unsigned microseconds = 0;
  {
    const std::lock_guard lock(tests().mutex);
    const unsigned span = tests().longest_pause - tests().shortest_pause;
    microseconds = tests().shortest_pause + static_cast<unsigned>(tests().random() % (span + 1));
  }
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

thread_local std::vector<void*> contexts;

// Of every call. `needs_context`: as of the device itself.
Result begin(const char* function, bool needs_context = true) {
  char name[16] = {};
  ::pthread_getname_np(::pthread_self(), name, sizeof name);
  const std::lock_guard lock(tests().mutex);
  ++tests().calls[function];
  const std::string thread(name);
  tests().forbidden += thread == "shoal" || thread == "shoal-inside" ? 1 : 0;
  if (const auto failure = tests().failures.find(function); failure != tests().failures.end()) {
    return failure->second;
  }
  return needs_context && contexts.empty() ? invalid_context : success;
}

// --- Streams ---

class Queue {
 public:
  void add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (!started_) {
        std::thread([this] { serve(); }).detach();
        started_ = true;
      }
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool started_ = false;
  bool busy_ = false;
};

struct Stream {
  Queue own;
  std::atomic<bool> captures{false};
  std::atomic<bool> is_lost{false};
};

Queue& hardware_queue() {
  static auto* const queue = new Queue();
  return *queue;
}

struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;  // guarded by mutex; for ever, since threads serve them
};

Streams& streams() {
  static auto* const instance = new Streams();
  return *instance;
}

Stream* make_stream() {
  auto* const stream = new Stream();
  const std::lock_guard lock(streams().mutex);
  streams().all.push_back(stream);
  return stream;
}

Stream& stream_at(Stream* stream) {
  static Stream* const program = make_stream();
  return stream == nullptr ? *program : *stream;
}

void put(Stream* stream, std::function<void()> task) {
  if (stream_at(stream).is_lost) {
    return;
  }
  bool one_queue = false;
  {
    const std::lock_guard lock(tests().mutex);
    one_queue = tests().one_queue;
  }
  (one_queue ? hardware_queue() : stream_at(stream).own).add(std::move(task));
}

// --- Events ---

struct Moment {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;  // guarded by mutex

  void pass() {
    const std::lock_guard lock(mutex);
    passed = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Moment> last;  // guarded by mutex; null: never recorded

  std::shared_ptr<Moment> moment() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

// --- The library's functions ---

Result error_name(Result, const char** name) {
  *name = "CUDA_ERROR_OF_THE_STAND_IN";
  return success;
}

Result error_text(Result, const char** text) {
  *text = "a failure that a test has asked for, or a wrong call";
  return success;
}

Result initialise(unsigned) { return begin("cuInit", false); }

Result device_get(int* device, int ordinal) {
  *device = ordinal;
  return begin("cuDeviceGet", false);
}

Result primary_context_retain(void** made, int) {
  *made = &context;
  return begin("cuDevicePrimaryCtxRetain", false);
}

Result primary_context_release(int) { return begin("cuDevicePrimaryCtxRelease", false); }

Result context_push(void* pushed) {
  const Result result = begin("cuCtxPushCurrent", false);
  if (result == success) {
    contexts.push_back(pushed);
  }
  return result;
}

Result context_pop(void** popped) {
  const Result result = begin("cuCtxPopCurrent");
  if (result == success) {
    *popped = contexts.back();
    contexts.pop_back();
  }
  return result;
}

Result stream_create(Stream** made, unsigned, int) {
  const Result result = begin("cuStreamCreateWithPriority");
  *made = result == success ? make_stream() : nullptr;
  return result;
}

Result stream_destroy(Stream*) { return begin("cuStreamDestroy"); }

Result stream_wait_event(Stream* stream, Event* event, unsigned) {
  const Result result = begin("cuStreamWaitEvent");
  if (const std::shared_ptr<Moment> moment = event->moment(); result == success && moment != nullptr) {
    put(stream, [moment] { moment->wait(); });
  }
  return result;
}

Result stream_is_capturing(Stream* stream, int* status) {
  *status = stream_at(stream).captures ? 1 : 0;
  return begin("cuStreamIsCapturing");
}

Result stream_query(Stream* stream) {
  const Result result = begin("cuStreamQuery");
  return result == success && stream_at(stream).is_lost ? illegal_address : result;
}

Result stream_synchronize(Stream* stream) {
  const Result result = begin("cuStreamSynchronize");
  if (result == success && stream_at(stream).is_lost) {
    return illegal_address;
  }
  if (result == success) {
    const auto moment = std::make_shared<Moment>();
    put(stream, [moment] { moment->pass(); });
    moment->wait();
  }
  return result;
}

Result event_create(Event** made, unsigned) {
  const Result result = begin("cuEventCreate");
  *made = result == success ? new Event() : nullptr;
  return result;
}

Result event_record(Event* event, Stream* stream) {
  const Result result = begin("cuEventRecord");
  if (result == success) {
    const auto moment = std::make_shared<Moment>();
    {
      const std::lock_guard lock(event->mutex);
      event->last = moment;
    }
    put(stream, [moment] { moment->pass(); });
  }
  return result;
}

Result event_query(Event* event) {
  const Result result = begin("cuEventQuery");
  const std::shared_ptr<Moment> moment = event->moment();
  if (result != success || moment == nullptr) {
    return result;
  }
  const std::lock_guard lock(moment->mutex);
  return moment->passed ? success : not_ready;
}

Result event_synchronize(Event* event) {
  const Result result = begin("cuEventSynchronize");
  if (const std::shared_ptr<Moment> moment = event->moment(); result == success && moment != nullptr) {
    moment->wait();
  }
  return result;
}

Result event_destroy(Event* event) {
  delete event;
  return begin("cuEventDestroy", false);
}

// Whether these bytes are registered; counts the copy if not.
void look_at_copy(const void* host, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(host);
  const std::lock_guard lock(tests().mutex);
  auto after = tests().pinned.upper_bound(first);
  const bool is_pinned = after != tests().pinned.begin() && (--after, first + bytes <= after->first + after->second);
  tests().pageable += is_pinned ? 0 : 1;
}

Result copy_to_host(void* to, DevicePointer from, std::size_t bytes, Stream* stream) {
  const Result result = begin("cuMemcpyDtoHAsync");
  if (result == success) {
    look_at_copy(to, bytes);
    put(stream, [=] {
      std::memset(to, garbage, bytes);
      pause();
      std::memcpy(to, std::bit_cast<const void*>(from), bytes);
    });
  }
  return result;
}

Result copy_to_device(DevicePointer to, const void* from, std::size_t bytes, Stream* stream) {
  const Result result = begin("cuMemcpyHtoDAsync");
  if (result == success) {
    look_at_copy(from, bytes);
    put(stream, [=] {
      pause();
      std::memcpy(std::bit_cast<void*>(to), from, bytes);
    });
  }
  return result;
}

Result host_register(void* memory, std::size_t bytes, unsigned) {
  const Result result = begin("cuMemHostRegister");
  if (result != success) {
    return result;
  }
  const auto* const first = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(tests().mutex);
  for (const auto& [other, size] : tests().pinned) {
    if (first < other + size && other < first + bytes) {
      return already_registered;
    }
  }
  tests().pinned[first] = bytes;
  return success;
}

Result host_unregister(void* memory) {
  const Result result = begin("cuMemHostUnregister");
  const std::lock_guard lock(tests().mutex);
  return result == success && tests().pinned.erase(static_cast<const std::byte*>(memory)) == 0 ? not_registered
                                                                                               : result;
}

Result host_device_pointer(DevicePointer* there, void* host, unsigned) {
  *there = reinterpret_cast<DevicePointer>(host);
  return begin("cuMemHostGetDevicePointer");
}

Result launch_host_function(Stream* stream, void (*function)(void*), void* argument) {
  const Result result = begin("cuLaunchHostFunc");
  if (result == success) {
    put(stream, [=] {
      pause();
      function(argument);
    });
  }
  return result;
}

std::atomic<std::uint32_t>& word_at(DevicePointer address) {
  return *std::bit_cast<std::atomic<std::uint32_t>*>(address);
}

Result stream_write_value(Stream* stream, DevicePointer address, std::uint32_t value, unsigned) {
  const Result result = begin("cuStreamWriteValue32");
  if (result == success) {
    put(stream, [=] { word_at(address).store(value, std::memory_order_release); });
  }
  return result;
}

Result stream_wait_value(Stream* stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  const Result result = begin("cuStreamWaitValue32");
  if (result == success && flags != 0) {
    return invalid_value;  // the stand-in knows "at least" alone
  }
  if (result == success) {
    put(stream, [=] {
      while (static_cast<std::int32_t>(word_at(address).load(std::memory_order_acquire) - value) < 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    });
  }
  return result;
}

template <class Function>
void* pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

// --- What is exported ---

extern "C" {

Result cuDriverGetVersion(int* found) {
  *found = version;
  return success;
}

Result cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int*) {
  static const std::map<std::string, void*> functions = {
      {"cuGetErrorName", pointer(error_name)},
      {"cuGetErrorString", pointer(error_text)},
      {"cuInit", pointer(initialise)},
      {"cuDeviceGet", pointer(device_get)},
      {"cuDevicePrimaryCtxRetain", pointer(primary_context_retain)},
      {"cuDevicePrimaryCtxRelease", pointer(primary_context_release)},
      {"cuCtxPushCurrent", pointer(context_push)},
      {"cuCtxPopCurrent", pointer(context_pop)},
      {"cuStreamCreateWithPriority", pointer(stream_create)},
      {"cuStreamDestroy", pointer(stream_destroy)},
      {"cuStreamWaitEvent", pointer(stream_wait_event)},
      {"cuStreamIsCapturing", pointer(stream_is_capturing)},
      {"cuStreamQuery", pointer(stream_query)},
      {"cuStreamSynchronize", pointer(stream_synchronize)},
      {"cuEventCreate", pointer(event_create)},
      {"cuEventRecord", pointer(event_record)},
      {"cuEventQuery", pointer(event_query)},
      {"cuEventSynchronize", pointer(event_synchronize)},
      {"cuEventDestroy", pointer(event_destroy)},
      {"cuMemcpyDtoHAsync", pointer(copy_to_host)},
      {"cuMemcpyHtoDAsync", pointer(copy_to_device)},
      {"cuMemHostRegister", pointer(host_register)},
      {"cuMemHostUnregister", pointer(host_unregister)},
      {"cuMemHostGetDevicePointer", pointer(host_device_pointer)},
      {"cuLaunchHostFunc", pointer(launch_host_function)},
      {"cuStreamWriteValue32", pointer(stream_write_value)},
      {"cuStreamWaitValue32", pointer(stream_wait_value)},
  };
  const auto found = functions.find(name);
  *function = found == functions.end() ? nullptr : found->second;
  const std::lock_guard lock(tests().mutex);
  const auto failure = tests().failures.find(std::string("find ") + name);
  return failure != tests().failures.end() ? failure->second : found == functions.end() ? not_found : success;
}

void shoal_stand_in_configure(std::uint64_t seed, unsigned shortest_pause, unsigned longest_pause, int one_queue) {
  const std::lock_guard lock(tests().mutex);
  tests().random.seed(seed);
  tests().shortest_pause = shortest_pause;
  tests().longest_pause = std::max(shortest_pause, longest_pause);
  tests().one_queue = one_queue != 0;
}

void shoal_stand_in_fail(const char* function, int result) {
  const std::lock_guard lock(tests().mutex);
  if (result == success) {
    tests().failures.erase(function);
  } else {
    tests().failures[function] = result;
  }
}

void shoal_stand_in_capture(void* stream, int captures) {
  stream_at(static_cast<Stream*>(stream)).captures = captures != 0;
}

void shoal_stand_in_lose(void* stream) { stream_at(static_cast<Stream*>(stream)).is_lost = true; }

std::uint64_t shoal_stand_in_calls(const char* function) {
  const std::lock_guard lock(tests().mutex);
  std::uint64_t all = 0;
  for (const auto& [name, calls] : tests().calls) {
    all += std::string(function) == "*" || name == function ? calls : 0;
  }
  return all;
}

std::uint64_t shoal_stand_in_forbidden_calls() {
  const std::lock_guard lock(tests().mutex);
  return tests().forbidden;
}

std::uint64_t shoal_stand_in_pageable_copies() {
  const std::lock_guard lock(tests().mutex);
  return tests().pageable;
}

std::uint64_t shoal_stand_in_registered_bytes() {
  const std::lock_guard lock(tests().mutex);
  std::uint64_t all = 0;
  for (const auto& [first, bytes] : tests().pinned) {
    all += bytes;
  }
  return all;
}

void shoal_stand_in_synchronize() {
  std::vector<Stream*> all;
  {
    const std::lock_guard lock(streams().mutex);
    all = streams().all;
  }
  hardware_queue().wait_until_idle();
  for (Stream* const stream : all) {
    stream->own.wait_until_idle();
  }
}
}
