#include "drivers/cuda/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>

namespace shoal::cuda {

namespace {

// The version of the interface that these declarations are of, and the first that can be asked for functions by
// version.
constexpr int declared = 12'000;
constexpr int oldest = 11'030;

}  // namespace

std::shared_ptr<const Library> Library::load(const std::string& name) {
  std::shared_ptr<Library> library(new Library());  // which stays loaded until the process ends: others use it too
  library->handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle_ == nullptr) {
    const char* const why = ::dlerror();
    throw std::runtime_error("CUDA's driver library cannot be loaded: " + std::string(why == nullptr ? name : why));
  }
  library->is_rocm_ = ::dlsym(library->handle_, "hipInit") != nullptr;
  if (!library->is_rocm_) {
    library->require_version();
  }
  library->find(library->error_name_, "cuGetErrorName");
  library->find(library->error_text_, "cuGetErrorString");
  Result (*initialise)(unsigned) = nullptr;
  library->find(initialise, "cuInit");
  library->check(initialise(0), "cuInit", "this machine");
  library->find(library->device_get, "cuDeviceGet");
  library->find(library->primary_context_retain, "cuDevicePrimaryCtxRetain");
  library->find(library->primary_context_release, "cuDevicePrimaryCtxRelease");
  library->find(library->context_push, "cuCtxPushCurrent");
  library->find(library->context_pop, "cuCtxPopCurrent");
  library->find(library->stream_create, "cuStreamCreateWithPriority");
  library->find(library->stream_destroy, "cuStreamDestroy");
  library->find(library->stream_wait_event, "cuStreamWaitEvent");
  library->find(library->stream_is_capturing, "cuStreamIsCapturing");
  library->find(library->stream_query, "cuStreamQuery");
  library->find(library->stream_synchronize, "cuStreamSynchronize");
  library->find(library->event_create, "cuEventCreate");
  library->find(library->event_record, "cuEventRecord");
  library->find(library->event_query, "cuEventQuery");
  library->find(library->event_synchronize, "cuEventSynchronize");
  library->find(library->event_destroy, "cuEventDestroy");
  library->find(library->copy_to_host, "cuMemcpyDtoHAsync");
  library->find(library->copy_to_device, "cuMemcpyHtoDAsync");
  library->find(library->host_register, "cuMemHostRegister");
  library->find(library->host_unregister, "cuMemHostUnregister");
  library->find(library->host_device_pointer, "cuMemHostGetDevicePointer");
  library->find(library->launch_host_function, "cuLaunchHostFunc");
  library->find(library->stream_write_value, "cuStreamWriteValue32", false);
  if (library->is_rocm_) {
    library->find(library->rocm_wait_value_, "cuStreamWaitValue32", false);
  } else {
    library->find(library->wait_value_, "cuStreamWaitValue32", false);
  }
  return library;
}

void Library::require_version() {
  auto* const get_version = reinterpret_cast<Result (*)(int*)>(::dlsym(handle_, "cuDriverGetVersion"));
  if (get_version == nullptr || get_version(&version_) != success || version_ < oldest) {
    throw std::runtime_error("CUDA's driver is of version " + std::to_string(version_ / 1000) + "." +
                             std::to_string(version_ % 1000 / 10) +
                             ", and Shoal needs 11.3 or later: update the driver");
  }
}

template <class Function>
void Library::find(Function& function, const char* name, bool is_needed) {
  void* const found = is_rocm_ ? find_in_rocm(name) : find_in_cuda(name);
  if (found == nullptr && is_needed) {
    throw std::runtime_error("CUDA's driver has no " + std::string(name) + ": update the driver");
  }
  function = reinterpret_cast<Function>(found);
}

void* Library::find_in_cuda(const char* name) const {
  void* found = nullptr;
  const int version = std::min(version_, declared);
  if (void* const asked = ::dlsym(handle_, "cuGetProcAddress_v2")) {
    int status = 0;
    const auto get = reinterpret_cast<Result (*)(const char*, void**, int, std::uint64_t, int*)>(asked);
    return get(name, &found, version, 0, &status) == success ? found : nullptr;
  }
  if (void* const asked = ::dlsym(handle_, "cuGetProcAddress")) {
    const auto get = reinterpret_cast<Result (*)(const char*, void**, int, std::uint64_t)>(asked);
    return get(name, &found, version, 0) == success ? found : nullptr;
  }
  return nullptr;
}

// "cuStreamDestroy" is "hipStreamDestroy" there, but for these.
void* Library::find_in_rocm(const char* name) const {
  static const std::map<std::string, const char*> others = {
      {"cuEventCreate", "hipEventCreateWithFlags"}, {"cuGetErrorName", "hipDrvGetErrorName"},
      {"cuGetErrorString", "hipDrvGetErrorString"}, {"cuMemHostRegister", "hipHostRegister"},
      {"cuMemHostUnregister", "hipHostUnregister"}, {"cuMemHostGetDevicePointer", "hipHostGetDevicePointer"}};
  const auto other = others.find(name);
  return ::dlsym(handle_, other == others.end() ? ("hip" + std::string(name).substr(2)).c_str() : other->second);
}

Result Library::stream_wait_value(Stream stream, DevicePointer word, std::uint32_t value) const {
  constexpr unsigned at_least = 0;
  constexpr std::uint32_t all_bits = 0xffffffff;
  return rocm_wait_value_ != nullptr ? rocm_wait_value_(stream, word, value, at_least, all_bits)
                                     : wait_value_(stream, word, value, at_least);
}

void Library::check(Result result, const char* call, const std::string& where) const {
  if (result == success) {
    return;
  }
  const char* name = nullptr;
  const char* text = nullptr;
  error_name_(result, &name);
  error_text_(result, &text);
  throw Error(std::string(call) + " on " + where + " has failed: " + (text == nullptr ? "an unknown error" : text) +
              " (" + (name == nullptr ? "error" : name) + ", " + std::to_string(result) + ")");
}

}  // namespace shoal::cuda
