#include "drivers/shm/array_allocator.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "drivers/shm/pages.h"
#include "os/descriptor.h"

namespace shoal::shm {

namespace {

[[noreturn]] void fail(const std::string& what, int code) {
  throw std::system_error(code, std::system_category(), what);
}

std::size_t rounded_up(std::size_t bytes) { return (bytes + region_grain - 1) / region_grain * region_grain; }

}  // namespace

// All allocators of this process. Never destroyed: threads may outlive static objects at exit.
class Forks {
 public:
  static Forks& watched() {
    static Forks* const instance = new Forks;
    static const int installed = ::pthread_atfork(before, after_in_parent, after_in_child);
    static_cast<void>(installed);
    return *instance;
  }

  void add(ArrayAllocator* allocator) {
    const std::lock_guard lock(mutex_);
    allocators_.push_back(allocator);
  }
  void remove(ArrayAllocator* allocator) {
    const std::lock_guard lock(mutex_);
    allocators_.erase(std::find(allocators_.begin(), allocators_.end(), allocator));
  }

 private:
  static void before() {
    Forks& all = watched();
    all.mutex_.lock();
    for (const ArrayAllocator* allocator : all.allocators_) {
      allocator->mutex_.lock();
    }
  }
  static void after_in_parent() {
    Forks& all = watched();
    for (const ArrayAllocator* allocator : all.allocators_) {
      allocator->mutex_.unlock();
    }
    all.mutex_.unlock();
  }
  // May only do what is safe in a signal handler. What the child maps, its own children inherit.
  static void after_in_child() {
    Forks& all = watched();
    for (const ArrayAllocator* allocator : all.allocators_) {
      allocator->map_in_child();
      allocator->mutex_.unlock();
    }
    all.allocators_.clear();
    all.mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<ArrayAllocator*> allocators_;  // guarded by mutex_
};

ArrayAllocator::ArrayAllocator(std::shared_ptr<const Memory> memory, std::uint32_t rank)
    : memory_(std::move(memory)),
      rank_(rank),
      region_(memory_->has_regions() ? memory_->region(rank) : nullptr),
      generation_(os::fork_generation()) {
  if (region_ == nullptr) {
    return;
  }
  descriptor_ = ::fcntl(memory_->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor_ < 0) {
    fail("the node's shared memory cannot be used", errno);
  }
  Forks::watched().add(this);
}

ArrayAllocator::~ArrayAllocator() {
  if (region_ != nullptr && generation_ == os::fork_generation()) {
    Forks::watched().remove(this);
    ::close(descriptor_);
  }
}

std::shared_ptr<std::byte> ArrayAllocator::allocate(std::size_t bytes, bool stays) {
  if (region_ == nullptr || bytes > memory_->shape().region) {
    return nullptr;
  }
  const std::size_t size = std::max(rounded_up(bytes), region_grain);
  std::size_t begin = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [next, taken] : taken_) {
      if (next - begin >= size) {
        break;
      }
      begin = taken.end;
    }
    if (memory_->shape().region - begin < size) {
      return nullptr;
    }
    taken_.emplace(begin, Taken{begin + size, stays});
  }
  // Many gigabytes take seconds, and holds() is asked meanwhile.
  try {
    take(begin, begin + size);
  } catch (...) {
    give_back(begin);
    throw;
  }
  return {region_ + begin, [allocator = shared_from_this(), begin](std::byte*) { allocator->give_back(begin); }};
}

void ArrayAllocator::take(std::size_t begin, std::size_t end) const {
  const std::size_t bytes = end - begin;
  const std::size_t offset = memory_->file_offset(region_ + begin);
  memory_->open(rank_, end);
  if (const int code = reserve(descriptor_, offset, bytes); code != 0) {
    fail("rank " + std::to_string(rank_) + " cannot get " + std::to_string(bytes) +
             " bytes of memory for its arrays; give the machine or container more memory, or make the model smaller",
         code);
  }
  // Faulting pages one by one is much slower. If populate() fails, they fault later.
  static_cast<void>(populate(region_ + begin, bytes));
}

void ArrayAllocator::give_back(std::size_t begin) {
  if (generation_ != os::fork_generation()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto place = taken_.find(begin);
  const std::size_t bytes = place->second.end - begin;
  const auto offset = static_cast<off_t>(memory_->file_offset(region_ + begin));
  ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, static_cast<off_t>(bytes));
  const auto gone = detached_.lower_bound(begin);
  if (place->second.is_lost || (gone != detached_.end() && gone->first < begin + bytes)) {
    // The others still write into what the file has here: it is not given out again.
    ::madvise(region_ + begin, bytes, MADV_DONTNEED);
    return;
  }
  taken_.erase(place);
}

bool ArrayAllocator::holds(const std::byte* begin, std::uint64_t bytes) const {
  const std::uint64_t most = memory_->shape().region;
  if (region_ == nullptr || begin < region_ || begin >= region_ + most || bytes > most) {
    return false;
  }
  const auto offset = static_cast<std::size_t>(begin - region_);
  const std::lock_guard lock(mutex_);
  const auto next = taken_.upper_bound(offset);
  return next != taken_.begin() && offset + bytes <= std::prev(next)->second.end;
}

void ArrayAllocator::detach(const std::byte* begin, std::uint64_t bytes) {
  const std::size_t first = static_cast<std::size_t>(begin - region_) / region_grain * region_grain;
  const std::size_t end = rounded_up(static_cast<std::size_t>(begin - region_) + bytes);
  const std::lock_guard lock(mutex_);
  if (Taken& taken = std::prev(taken_.upper_bound(static_cast<std::size_t>(begin - region_)))->second; taken.stays) {
    taken.is_lost = true;
    return;
  }
  // Neighbours may have a page in common.
  std::size_t at = first;
  while (at < end) {
    auto next = detached_.upper_bound(at);
    const bool inside = next != detached_.begin() && std::prev(next)->second > at;
    const std::size_t until = inside                    ? std::prev(next)->second
                              : next == detached_.end() ? end
                                                        : std::min(end, next->first);
    if (!inside) {
      map_privately(at, until);
      if (populate(region_ + at, until - at) != 0) {
        touch(region_ + at, until - at);
      }
      detached_.emplace(at, until);
    }
    at = until;
  }
}

void ArrayAllocator::map_privately(std::size_t begin, std::size_t end) const {
  const auto offset = static_cast<off_t>(memory_->file_offset(region_ + begin));
  if (::mmap(region_ + begin, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, descriptor_,
             offset) == MAP_FAILED) {
    fail("rank " + std::to_string(rank_) + " cannot take its arrays out of the memory that ranks share", errno);
  }
  ::madvise(region_ + begin, end - begin, MADV_DONTDUMP);
}

// Detached ranges are private already, and fork() copies them.
void ArrayAllocator::map_in_child() const {
  for (const auto& [begin, taken] : taken_) {
    const std::size_t end = taken.end;
    std::size_t at = begin;
    auto next = detached_.lower_bound(at);
    while (at < end) {
      const std::size_t until = next == detached_.end() ? end : std::min(end, next->first);
      if (until > at) {
        // Where it fails, the child has nothing at these addresses.
        void* const mapped =
            ::mmap(region_ + at, until - at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                   descriptor_, static_cast<off_t>(memory_->file_offset(region_ + at)));
        if (mapped != MAP_FAILED) {
          ::madvise(mapped, until - at, MADV_DONTDUMP);
        }
      }
      at = until;
      if (next != detached_.end()) {
        at = std::max(at, next->second);
        ++next;
      }
    }
  }
  ::close(descriptor_);
}

}  // namespace shoal::shm
