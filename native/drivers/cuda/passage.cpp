#include "drivers/cuda/passage.h"

#include <utility>

namespace shoal::cuda {

namespace {

struct Departure {
  std::shared_ptr<GateWord> word;
  std::uint32_t number;
};

// Where a stream cannot write words itself. By a thread of the driver's, in the order of the stream.
void note_departure(void* argument) {
  const std::unique_ptr<Departure> departure(static_cast<Departure*>(argument));
  departure->word->store(departure->number, std::memory_order_release);
}

}  // namespace

// --- Ways ---

Ways::Ways(std::shared_ptr<Device> device) : device_(std::move(device)) {
  const Device::Inside inside(*device_);
  streams_ = device_->take_streams();
}

Ways::~Ways() {
  if (streams_.out != nullptr && device_->generation_ == os::fork_generation()) {
    device_->put_back(std::move(streams_));
  }
}

Gate Ways::depart() {
  Gate gate;
  gate.done = device_->words_->take();
  gate.done_value = gate.done->load() + 1;
  gate.ready = streams_.departures;
  gate.problem = [ways = shared_from_this()] { return ways->problem(); };
  // Numbers are written in their order.
  const std::lock_guard lock(departing_);
  gate.ready_at = streams_.departed + 1;
  const Library& calls = *device_->library_;
  if (device_->can_wait_) {
    const DevicePointer there = device_->words_there_ + device_->words_->offset_of(*streams_.departures);
    device_->check(calls.stream_write_value(out(), there, gate.ready_at, write_value_after_all_writes),
                   "cuStreamWriteValue32");
  } else {
    auto departure = std::make_unique<Departure>(Departure{streams_.departures, gate.ready_at});
    device_->check(calls.launch_host_function(out(), note_departure, departure.get()), "cuLaunchHostFunc");
    [[maybe_unused]] const Departure* const carried = departure.release();  // by the stream
  }
  streams_.departed = gate.ready_at;
  return gate;
}

void Ways::wait_for(const Gate& gate) {
  const DevicePointer there = device_->words_there_ + device_->words_->offset_of(*gate.done);
  device_->check(device_->library_->stream_wait_value(back(), there, gate.done_value), "cuStreamWaitValue32");
}

std::string Ways::problem() const {
  try {
    const Device::Inside inside(*device_);
    const Result result = device_->library_->stream_query(out());
    device_->check(result == not_ready ? success : result, "cuStreamQuery");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// --- One operation's way ---

Passage::Passage(std::shared_ptr<Ways> ways) : ways_(std::move(ways)), device_(*ways_->device_) {}

Passage::~Passage() {
  if (device_.generation_ != os::fork_generation()) {
    return;
  }
  Context popped = nullptr;
  const bool is_inside = device_.library_->context_push(device_.context_) == success;
  for (const Event event : {given_, departed_, arrived_}) {
    if (event != nullptr) {
      device_.library_->event_destroy(event);  // one that has not passed is destroyed when it has
    }
  }
  if (is_inside) {
    device_.library_->context_pop(&popped);
  }
}

void Passage::record(Event& event, Stream stream) const {
  if (event == nullptr) {
    event = device_.make_event();
  }
  device_.check(device_.library_->event_record(event, stream), "cuEventRecord");
}

void Passage::follow(Stream program) {
  const Device::Inside inside(device_);
  int status = capture_none;
  device_.check(device_.library_->stream_is_capturing(program, &status), "cuStreamIsCapturing");
  if (status != capture_none) {
    throw std::runtime_error(
        "an operation of Shoal cannot be captured in a CUDA graph: call it outside of torch.cuda.graph(), or leave it "
        "out of what is captured");
  }
  record(given_, program);
  device_.check(device_.library_->stream_wait_event(ways_->out(), given_, 0), "cuStreamWaitEvent");
}

void Passage::bring(std::byte* host, DevicePointer from, std::size_t bytes) {
  if (bytes > 0) {
    const Device::Inside inside(device_);
    device_.check(device_.library_->copy_to_host(host, from, bytes, ways_->out()), "cuMemcpyDtoHAsync");
  }
}

Gate Passage::depart() {
  const Device::Inside inside(device_);
  record(departed_, ways_->out());
  gate_ = ways_->depart();
  return *gate_;
}

void Passage::begin_return(bool waits) {
  const Device::Inside inside(device_);
  device_.check(device_.library_->stream_wait_event(ways_->back(), departed_, 0), "cuStreamWaitEvent");
  if (waits) {
    ways_->wait_for(*gate_);
  }
}

void Passage::take_back(DevicePointer to, const std::byte* host, std::size_t bytes) {
  if (bytes > 0) {
    const Device::Inside inside(device_);
    device_.check(device_.library_->copy_to_device(to, host, bytes, ways_->back()), "cuMemcpyHtoDAsync");
  }
}

void Passage::end_return() {
  const Device::Inside inside(device_);
  record(arrived_, ways_->back());
  has_returned_ = true;
}

void Passage::follow_back(Stream program) {
  const Device::Inside inside(device_);
  device_.check(device_.library_->stream_wait_event(program, arrived_, 0), "cuStreamWaitEvent");
}

bool Passage::is_over() {
  if (gate_ && !gate_->is_passed()) {
    return false;  // whoever passes it may write to the memory before
  }
  const Device::Inside inside(device_);
  if (departed_ == nullptr) {
    record(departed_, ways_->out());
  }
  const Result result = device_.library_->event_query(has_returned_ ? arrived_ : departed_);
  device_.check(result == not_ready ? success : result, "cuEventQuery");
  return result == success;
}

void Passage::wait_until_over() {
  const Device::Inside inside(device_);
  if (departed_ == nullptr) {
    record(departed_, ways_->out());
  }
  device_.check(device_.library_->event_synchronize(has_returned_ ? arrived_ : departed_), "cuEventSynchronize");
}

}  // namespace shoal::cuda
