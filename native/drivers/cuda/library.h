// CUDA's driver library, as far as it is needed here: found when it is first asked for, never linked. The declarations
// are our own, since no header of CUDA's is on the machines where Shoal is built.
//
// Functions are asked for by version: under a plain name the library has the first stream memory operations, which
// drivers have switched off.
//
// ROCm's library has the same functions under other names, so it does in the place of CUDA's. Not run on such a device
// yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace shoal::cuda {

using Result = int;
using Context = struct ContextOpaque*;
using Stream = struct StreamOpaque*;
using Event = struct EventOpaque*;
using DevicePointer = std::uint64_t;

// A call of the library that has failed.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Values of the library's interface.
inline constexpr Result success = 0;
inline constexpr Result not_ready = 600;
inline constexpr Result already_registered = 712;
inline constexpr Result not_supported = 801;
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_blocking_sync = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned register_portable = 1;
inline constexpr unsigned register_device_map = 2;
inline constexpr unsigned write_value_after_all_writes = 0;
inline constexpr int capture_none = 0;

class Library {
 public:
  // The library under this name, initialised. Throws std::runtime_error: there is none, it is too old, or it has no
  // device.
  static std::shared_ptr<const Library> load(const std::string& name);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Throws Error if the result is none of success. `call`: the function's name. `where`: "CUDA device 0".
  void check(Result result, const char* call, const std::string& where) const;

  Result (*device_get)(int* device, int ordinal) = nullptr;
  Result (*primary_context_retain)(Context*, int device) = nullptr;
  Result (*primary_context_release)(int device) = nullptr;
  Result (*context_push)(Context) = nullptr;
  Result (*context_pop)(Context*) = nullptr;
  Result (*stream_create)(Stream*, unsigned flags, int priority) = nullptr;
  Result (*stream_destroy)(Stream) = nullptr;
  Result (*stream_wait_event)(Stream, Event, unsigned flags) = nullptr;
  Result (*stream_is_capturing)(Stream, int* status) = nullptr;
  Result (*stream_query)(Stream) = nullptr;
  Result (*stream_synchronize)(Stream) = nullptr;
  Result (*event_create)(Event*, unsigned flags) = nullptr;
  Result (*event_record)(Event, Stream) = nullptr;
  Result (*event_query)(Event) = nullptr;
  Result (*event_synchronize)(Event) = nullptr;
  Result (*event_destroy)(Event) = nullptr;
  Result (*copy_to_host)(void* to, DevicePointer from, std::size_t bytes, Stream) = nullptr;
  Result (*copy_to_device)(DevicePointer to, const void* from, std::size_t bytes, Stream) = nullptr;
  Result (*host_register)(void*, std::size_t bytes, unsigned flags) = nullptr;
  Result (*host_unregister)(void*) = nullptr;
  Result (*host_device_pointer)(DevicePointer*, void* host, unsigned flags) = nullptr;
  Result (*launch_host_function)(Stream, void (*function)(void*), void* argument) = nullptr;
  // Null where the library has no stream memory operations.
  Result (*stream_write_value)(Stream, DevicePointer, std::uint32_t value, unsigned flags) = nullptr;
  bool streams_can_wait() const { return wait_value_ != nullptr || rocm_wait_value_ != nullptr; }
  // What is put into the stream from now on is done once the word has come to this value.
  Result stream_wait_value(Stream stream, DevicePointer word, std::uint32_t value) const;

 private:
  Library() = default;
  // Throws std::runtime_error if what is needed is not there.
  template <class Function>
  void find(Function& function, const char* name, bool is_needed = true);
  void* find_in_cuda(const char* name) const;
  void* find_in_rocm(const char* name) const;
  void require_version();

  void* handle_ = nullptr;
  bool is_rocm_ = false;
  int version_ = 0;
  Result (*wait_value_)(Stream, DevicePointer, std::uint32_t value, unsigned flags) = nullptr;
  Result (*rocm_wait_value_)(Stream, DevicePointer, std::uint32_t value, unsigned flags, std::uint32_t mask) = nullptr;
  Result (*error_name_)(Result, const char**) = nullptr;
  Result (*error_text_)(Result, const char**) = nullptr;
};

}  // namespace shoal::cuda
