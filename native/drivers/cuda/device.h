// A CUDA device as Shoal uses it, from the first use of it until the process ends: frameworks may ask for streams that
// they have seen long after an operation.
//
// It knows handles and addresses, of whichever framework. Every method may be called by any thread, and throws Error if
// the device has failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/common/gate.h"
#include "drivers/cuda/library.h"
#include "drivers/cuda/words.h"
#include "os/descriptor.h"

namespace shoal::cuda {

class Device {
 public:
  // `name`: of CUDA's driver library. `ordinal`: among the devices that this process sees. The same one each time.
  // Throws std::runtime_error.
  static std::shared_ptr<Device> open(const std::string& name, int ordinal);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  // Of one that was never opened.
  ~Device();

  // Whether a stream can wait for a word. If not, the host has to wait before it asks for copies back.
  bool streams_can_wait() const { return can_wait_; }

  // From now on the device reads and writes these bytes of the host by itself.
  void pin(std::byte* memory, std::size_t bytes);
  // No more. `waits`: until everything is done that any of Shoal's streams was asked for before.
  void unpin(std::byte* memory, bool waits);

 private:
  friend class Ways;
  friend class Passage;

  // While this lives, the calling thread's context is the device's.
  class Inside {
   public:
    explicit Inside(const Device& device);
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside();

   private:
    const Device& device_;
  };

  Device(std::shared_ptr<const Library> library, int ordinal);
  void prepare();
  void check(Result result, const char* call) const { library_->check(result, call, name_); }
  Event make_event() const;
  // Two streams that nobody uses, and how far the first has come. Those that are put back may still have something to
  // do, so they stay together.
  struct Streams {
    Stream out = nullptr;
    Stream back = nullptr;
    std::shared_ptr<GateWord> departures;  // how many gates have been reached in the stream out
    std::uint32_t departed = 0;            // how many gates have been put into it
  };
  Streams take_streams();
  void put_back(Streams streams);

  const std::shared_ptr<const Library> library_;
  const std::string name_;
  const std::uint64_t generation_ = os::fork_generation();
  const std::shared_ptr<Words> words_;
  int device_ = 0;
  Context context_ = nullptr;
  bool is_registered_ = false;     // the device knows the words
  DevicePointer words_there_ = 0;  // their address on the device
  bool can_wait_ = false;
  std::mutex mutex_;
  std::vector<Stream> made_;  // guarded by mutex_
  std::deque<Streams> free_;  // guarded by mutex_
};

}  // namespace shoal::cuda
