#include "drivers/cuda/words.h"

#include <sys/mman.h>

#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace shoal::cuda {

namespace {

void* shared_pages(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

Words::Words() : lines_(static_cast<Line*>(shared_pages(bytes))), free_(count) {
  for (std::size_t line = 0; line < count; ++line) {
    new (&lines_[line]) Line;
  }
  std::iota(free_.rbegin(), free_.rend(), std::size_t{0});
}

Words::~Words() { ::munmap(lines_, bytes); }

std::shared_ptr<GateWord> Words::take() {
  std::size_t line = 0;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      throw std::runtime_error(std::to_string(count) +
                               " operations are on their way through one CUDA device: wait for some of them");
    }
    line = free_.back();
    free_.pop_back();
  }
  return {&lines_[line].word, [self = shared_from_this(), line](GateWord*) { self->put_back(line); }};
}

void Words::put_back(std::size_t line) {
  const std::lock_guard lock(mutex_);
  free_.push_back(line);
}

}  // namespace shoal::cuda
