#include "drivers/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "drivers/shm/futex.h"

namespace shoal::shm {

namespace {

constexpr std::size_t slot_bytes = 256 * 1024;
constexpr std::uint32_t slot_count = 2;
constexpr std::uint32_t result_count = 4;
constexpr std::size_t staging_bytes = 16 * 1024 * 1024;
constexpr std::size_t page = 4096;

// Of all regions: a quarter of what a process may have where addresses have 47 bits.
constexpr std::size_t most_addresses = std::size_t{1} << 45U;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::size_t desks_bytes(const Shape& shape) { return (shape.ranks * sizeof(Desk) + page - 1) / page * page; }

[[noreturn]] void fail(const char* what, int code = errno) {
  throw std::system_error(code, std::system_category(), what);
}

// SIGXFSZ would be the answer to a file that is too long.
bool may_be_so_long(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur);
}

os::Descriptor make(const Shape& shape) {
  const std::size_t bytes = shape.bytes_in_use();
  os::Descriptor made(::memfd_create("shoal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made) {
    fail("no shared memory can be made");
  }
  int code = EINTR;
  while (code == EINTR) {
    code = ::posix_fallocate(made.number(), 0, static_cast<off_t>(bytes));
  }
  if (code != 0) {
    fail(("there are no " + std::to_string(bytes) + " bytes of shared memory").c_str(), code);
  }
  // Without regions arrays lie elsewhere, that is all.
  if (shape.region > 0 && may_be_so_long(shape.bytes())) {
    static_cast<void>(::ftruncate(made.number(), static_cast<off_t>(shape.bytes())));
  }
  ::fcntl(made.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return made;
}

}  // namespace

std::size_t Shape::bytes_in_use() const {
  const std::size_t bytes = desks_bytes(*this) + ranks * mailbox + (std::size_t{slots} * ranks + results) * slot;
  return (bytes + region_grain - 1) / region_grain * region_grain;
}

Shape shape_for(std::uint32_t ranks, bool alone) {
  Shape shape;
  shape.ranks = ranks;
  shape.slots = slot_count;
  shape.results = alone ? 0 : result_count;
  shape.slot = std::min(slot_bytes, staging_bytes / (slot_count * ranks + shape.results) / page * page);
  const std::size_t machine = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  shape.region = std::min(machine, most_addresses / ranks);
  shape.region = (shape.region + region_grain - 1) / region_grain * region_grain;
  return shape;
}

Memory::Memory(const Shape& shape) : shape_(shape), descriptor_(make(shape)) { map(); }

Memory::Memory(os::Descriptor descriptor, const Shape& shape) : shape_(shape), descriptor_(std::move(descriptor)) {
  map();
}

void Memory::map() {
  struct stat found {};
  if (::fstat(descriptor_.number(), &found) != 0) {
    fail("the node's shared memory cannot be used");
  }
  if (shape_.region > 0 && found.st_size == static_cast<off_t>(shape_.bytes_in_use())) {
    shape_.region = 0;
    why_no_regions_ = "files may not be that long (ulimit -f)";
  } else if (found.st_size != static_cast<off_t>(shape_.bytes())) {
    throw std::invalid_argument("the node's shared memory has " + std::to_string(found.st_size) + " bytes instead of " +
                                std::to_string(shape_.bytes()) + ": install the same version of Shoal on every rank");
  }
  const auto mapped = [this](std::size_t bytes) {
    mapped_ = bytes;
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_.number(), 0);
  };
  void* begin = mapped(shape_.bytes());
  if (begin == MAP_FAILED && shape_.region > 0) {
    why_no_regions_ = "there are not enough addresses (ulimit -v): " + std::system_category().message(errno);
    begin = mapped(shape_.bytes_in_use());
  }
  if (begin == MAP_FAILED) {
    fail("the node's shared memory cannot be mapped");
  }
  begin_ = static_cast<std::byte*>(begin);
  ::madvise(begin_, mapped_, MADV_DONTFORK);
}

// In a child there may be something else at these addresses.
Memory::~Memory() {
  if (begin_ != nullptr && generation_ == os::fork_generation()) {
    ::munmap(begin_, mapped_);
  }
}

Desk& Memory::desk(std::uint32_t rank) const { return reinterpret_cast<Desk*>(begin_)[rank]; }

std::byte* Memory::mailbox(std::uint32_t rank) const { return begin_ + desks_bytes(shape_) + rank * shape_.mailbox; }

std::byte* Memory::slot(std::uint64_t number, std::uint32_t rank) const {
  const std::size_t slots_begin = desks_bytes(shape_) + shape_.ranks * shape_.mailbox;
  return begin_ + slots_begin + ((number % shape_.slots) * shape_.ranks + rank) * shape_.slot;
}

std::byte* Memory::result(std::uint64_t number) const {
  return slot(0, 0) + (std::size_t{shape_.slots} * shape_.ranks + number % shape_.results) * shape_.slot;
}

std::byte* Memory::region(std::uint32_t rank) const { return begin_ + shape_.bytes_in_use() + rank * shape_.region; }

// Sequentially consistent throughout: whoever goes to sleep says so before it looks at the bell again.
void ring(Desk& desk, bool always) {
  desk.bell.fetch_add(1);
  if (desk.waiting.load() > 0) {
    if (desk.asleep.load() > 0) {
      wake(desk.bell, waiters);
    }
  } else if (desk.attendant_asleep.load() > 0 && (always || desk.open.load() > 0)) {
    wake(desk.bell, attendants);
  }
}

}  // namespace shoal::shm
