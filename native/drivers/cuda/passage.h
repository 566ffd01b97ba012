// The ways of arrays through a device: out of it for an operation, and back. Each group has two streams of its own for
// that. So the operations of one never wait for what another brings, and none waits in a stream of the program's, which
// might wait for what it has to bring.
//
// Promises:
//   * Nothing here waits for the device but Passage::wait_until_over().
//   * A stream of the program's waits for an operation after Passage::follow_back() alone.
//
// Every method may be called by any thread, and throws Error if the device has failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "drivers/common/gate.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/library.h"

namespace shoal::cuda {

class Ways : public std::enable_shared_from_this<Ways> {
 public:
  explicit Ways(std::shared_ptr<Device> device);
  Ways(const Ways&) = delete;
  Ways& operator=(const Ways&) = delete;
  ~Ways();

  Stream out() const { return streams_.out; }
  Stream back() const { return streams_.back; }

 private:
  friend class Passage;

  // The gate of what has been put into the stream out until now.
  Gate depart();
  // What is put into the stream back from now on is done after the gate has been passed.
  void wait_for(const Gate& gate);
  // Why nothing more comes out; empty: it may.
  std::string problem() const;

  const std::shared_ptr<Device> device_;
  std::mutex departing_;
  Device::Streams streams_;  // `departed` guarded by departing_
};

// One operation's way: copies out, its gate, copies back. Called in this order; a thread may go on where another has
// stopped, but two never at once.
class Passage {
 public:
  explicit Passage(std::shared_ptr<Ways> ways);
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;
  ~Passage();

  // What leaves from now on comes after what is in this stream now. Throws std::runtime_error if the stream records
  // what it is asked for instead of doing it: an operation can be no part of a graph.
  void follow(Stream program);
  // Copies into pinned memory of the host.
  void bring(std::byte* host, DevicePointer from, std::size_t bytes);
  // Nothing more leaves. The gate opens when it is there.
  Gate depart();

  // What is copied back from now on comes after what has left, so pinned memory may be used both ways. `waits`: and
  // after the gate has been passed; if not, it has been passed already.
  void begin_return(bool waits);
  void take_back(DevicePointer to, const std::byte* host, std::size_t bytes);
  void end_return();
  bool has_returned() const { return has_returned_; }
  // What comes into this stream from now on is done after the copies back.
  void follow_back(Stream program);

  // Whether the gate has been passed, if there is one, and the device has done all that it was asked for up to now: the
  // host's memory is free.
  bool is_over();
  void wait_until_over();

 private:
  // Records the event, which is made if there is none.
  void record(Event& event, Stream stream) const;

  const std::shared_ptr<Ways> ways_;
  Device& device_;
  std::optional<Gate> gate_;
  bool has_returned_ = false;
  Event given_ = nullptr;
  Event departed_ = nullptr;
  Event arrived_ = nullptr;
};

}  // namespace shoal::cuda
