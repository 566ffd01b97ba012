#include "drivers/cuda/device.h"

#include <map>
#include <utility>

#include "os/fork_guard.h"

namespace shoal::cuda {

// --- The thread's context ---

Device::Inside::Inside(const Device& device) : device_(device) {
  os::refuse_in_child(device_.generation_);  // CUDA does not work there
  device_.check(device_.library_->context_push(device_.context_), "cuCtxPushCurrent");
}

Device::Inside::~Inside() {
  Context popped = nullptr;
  device_.library_->context_pop(&popped);
}

// --- The device ---

std::shared_ptr<Device> Device::open(const std::string& name, int ordinal) {
  static std::mutex mutex;
  static auto* const opened = new std::map<std::pair<std::string, int>, std::shared_ptr<Device>>();
  const std::lock_guard lock(mutex);
  std::shared_ptr<Device>& device = (*opened)[{name, ordinal}];
  if (device == nullptr) {
    std::shared_ptr<Device> made(new Device(Library::load(name), ordinal));
    made->prepare();
    device = std::move(made);
  }
  return device;
}

Device::Device(std::shared_ptr<const Library> library, int ordinal)
    : library_(std::move(library)), name_("CUDA device " + std::to_string(ordinal)), words_(std::make_shared<Words>()) {
  check(library_->device_get(&device_, ordinal), "cuDeviceGet");
  // The one that frameworks use. Where nobody has used the device yet, this makes it.
  check(library_->primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

void Device::prepare() {
  const Inside inside(*this);
  std::byte* const words = words_->memory();
  check(library_->host_register(words, Words::bytes, register_portable | register_device_map), "cuMemHostRegister");
  is_registered_ = true;
  check(library_->host_device_pointer(&words_there_, words, 0), "cuMemHostGetDevicePointer");
  Streams probe = take_streams();
  // All words are 0, so this waits for nothing.
  can_wait_ = library_->stream_write_value != nullptr && library_->streams_can_wait() &&
              library_->stream_write_value(probe.out, words_there_, 0, write_value_after_all_writes) == success &&
              library_->stream_wait_value(probe.out, words_there_, 0) == success;
  put_back(std::move(probe));
}

Device::~Device() {
  if (context_ == nullptr || library_->context_push(context_) != success) {
    return;
  }
  for (const Stream stream : made_) {
    library_->stream_destroy(stream);
  }
  if (is_registered_) {
    library_->host_unregister(words_->memory());
  }
  Context popped = nullptr;
  library_->context_pop(&popped);
  library_->primary_context_release(device_);
}

void Device::pin(std::byte* memory, std::size_t bytes) {
  const Inside inside(*this);
  check(library_->host_register(memory, bytes, register_portable | register_device_map), "cuMemHostRegister");
}

void Device::unpin(std::byte* memory, bool waits) {
  const Inside inside(*this);
  std::vector<Stream> streams;
  if (waits) {
    const std::lock_guard lock(mutex_);
    streams = made_;
  }
  Result waited = success;
  for (const Stream stream : streams) {
    const Result result = library_->stream_synchronize(stream);
    waited = waited == success ? result : waited;
  }
  // Also on a device that has failed: the memory may belong to others before long.
  const Result ended = library_->host_unregister(memory);
  check(waited, "cuStreamSynchronize");
  check(ended, "cuMemHostUnregister");
}

Event Device::make_event() const {
  Event made = nullptr;
  check(library_->event_create(&made, event_disable_timing | event_blocking_sync), "cuEventCreate");
  return made;
}

Device::Streams Device::take_streams() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    Streams streams = std::move(free_.front());
    free_.pop_front();
    return streams;
  }
  Streams streams;
  streams.departures = words_->take();
  streams.departed = streams.departures->load();  // somebody may have had it before
  for (Stream* const stream : {&streams.out, &streams.back}) {
    check(library_->stream_create(stream, stream_non_blocking, 0), "cuStreamCreateWithPriority");
    made_.push_back(*stream);
  }
  return streams;
}

void Device::put_back(Streams streams) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(streams));
}

}  // namespace shoal::cuda
