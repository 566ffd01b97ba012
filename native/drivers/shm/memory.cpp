#include "drivers/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "drivers/shm/pages.h"

namespace shoal::shm {

namespace {

// Of all regions: a quarter of what a process may have where addresses have 47 bits.
constexpr std::size_t most_addresses = std::size_t{1} << 45U;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

[[noreturn]] void fail(const char* what, int code = errno) {
  throw std::system_error(code, std::system_category(), what);
}

// SIGXFSZ would be the answer to a file that is too long.
bool may_be_so_long(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur);
}

std::size_t machine_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Of this process, of every kind.
std::size_t addresses_in_use() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Where addresses are limited, the program must not miss those that we take: it cannot use more than the machine has
// memory, and where it may have less than that, areas take little of it.
constexpr std::size_t part_for_areas = 16;

bool leaves_addresses(const Shape& shape) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return true;
  }
  const std::size_t in_use = addresses_in_use();
  return in_use + shape.bytes() + machine_bytes() <= limit.rlim_cur ||
         (shape.region == 0 && in_use + part_for_areas * shape.areas <= limit.rlim_cur);
}

void make_accessible(std::byte* begin, std::size_t bytes) {
  if (::mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) {
    fail("the node's shared memory cannot be made accessible");
  }
}

// This one, and what there is instead where it is too much: without regions arrays lie elsewhere, with smaller areas
// more of the groups of some ranks go another way, that is all. Their files differ in length, by which all ranks know.
std::vector<Shape> shapes_from(Shape shape) {
  std::vector<Shape> shapes{shape};
  shape.region = 0;
  shapes.push_back(shape);
  while (shape.areas > 0) {
    shape.areas = shape.areas / 2 / region_grain * region_grain;
    shapes.push_back(shape);
  }
  return shapes;
}

// Nothing in it is ever executed. A machine may compete that this is said (vm.memfd_noexec=2); kernels before 6.3 do
// not know the word.
os::Descriptor make_file() {
  constexpr unsigned cannot_be_executed = 8;  // MFD_NOEXEC_SEAL, which not all headers have
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  os::Descriptor made(::memfd_create("shoal", flags | cannot_be_executed));
  return made || errno != EINVAL ? std::move(made) : os::Descriptor(::memfd_create("shoal", flags));
}

os::Descriptor make(const Shape& shape) {
  const std::size_t bytes = shape.bytes_in_use();
  os::Descriptor made = make_file();
  if (!made) {
    fail("no shared memory can be made");
  }
  if (const int code = reserve(made.number(), 0, bytes); code != 0) {
    fail(("there are no " + std::to_string(bytes) + " bytes of shared memory").c_str(), code);
  }
  for (const Shape& one : shapes_from(shape)) {
    const bool fits = may_be_so_long(one.bytes()) && leaves_addresses(one);
    if (fits && ::ftruncate(made.number(), static_cast<off_t>(one.bytes())) == 0) {
      break;
    }
  }
  ::fcntl(made.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return made;
}

}  // namespace

Shape shape_for(std::uint32_t ranks, bool alone) {
  Shape shape = local::shape_without_arrays(ranks, alone);
  const std::size_t machine = machine_bytes();
  shape.areas = rounded_up(std::min(limits::areas_bytes, machine / 4), region_grain);
  // Ranks of a job have about as much to average each; twice that leaves room for what changes its place.
  shape.region = std::min({machine, 2 * machine / ranks, most_addresses / ranks});
  shape.region = rounded_up(shape.region, region_grain);
  return shape;
}

Memory::Memory(const Shape& shape) : GroupMemory(nullptr, shape), descriptor_(make(shape)) { map(); }

Memory::Memory(os::Descriptor descriptor, const Shape& shape)
    : GroupMemory(nullptr, shape), descriptor_(std::move(descriptor)) {
  map();
}

Memory::Memory(std::shared_ptr<const Memory> node, std::size_t area, const Shape& shape,
               std::vector<std::uint32_t> places)
    : GroupMemory(node->begin_ + node->shape_.bytes_in_use() + area, shape, node.get(), std::move(places)),
      of_node_(std::move(node)) {
  make_accessible(begin_, shape_.bytes_in_use());
}

void Memory::map() {
  struct stat found {};
  if (::fstat(descriptor_.number(), &found) != 0) {
    fail("the node's shared memory cannot be used");
  }
  const std::vector<Shape> shapes = shapes_from(shape_);
  const auto made = std::find_if(shapes.begin(), shapes.end(), [&found](const Shape& one) {
    return found.st_size == static_cast<off_t>(one.bytes());
  });
  if (made == shapes.end()) {
    throw std::invalid_argument("the node's shared memory has " + std::to_string(found.st_size) + " bytes instead of " +
                                std::to_string(shape_.bytes()) + ": install the same version of Shoal on every rank");
  }
  if (made != shapes.begin()) {
    why_no_regions_ = may_be_so_long(shape_.bytes()) ? "the program may need the addresses itself (ulimit -v)"
                                                     : "files may not be that long (ulimit -f)";
  }
  shape_ = *made;
  const auto mapped = [this](std::size_t bytes) {
    mapped_ = bytes;
    return ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, descriptor_.number(), 0);
  };
  void* begin = MAP_FAILED;
  if (shape_.region > 0 && !leaves_addresses(shape_)) {
    why_no_regions_ = "the program may need the addresses itself (ulimit -v)";
  } else {
    begin = mapped(shape_.bytes());
    if (begin == MAP_FAILED && shape_.region > 0) {
      why_no_regions_ = "there are not enough addresses: " + std::system_category().message(errno);
    }
  }
  if (begin == MAP_FAILED && shape_.region > 0) {
    begin = mapped(shape_.bytes_without_regions());
  }
  if (begin == MAP_FAILED) {
    fail("the node's shared memory cannot be mapped");
  }
  begin_ = static_cast<std::byte*>(begin);
  ::madvise(begin_, mapped_, MADV_DONTFORK);
  ::madvise(begin_, mapped_, MADV_DONTDUMP);
  try {
    make_accessible(begin_, shape_.bytes_in_use());
  } catch (...) {
    ::munmap(begin_, mapped_);  // there will be no destructor
    throw;
  }
}

// In a child there may be something else at these addresses.
Memory::~Memory() {
  if (of_node_ == nullptr && begin_ != nullptr && generation_ == os::fork_generation()) {
    ::munmap(begin_, mapped_);
  }
}

void Memory::open(std::uint32_t rank, std::size_t end) const {
  if (end <= open_[rank].load(std::memory_order_acquire)) {
    return;
  }
  const std::lock_guard lock(opening_);
  const std::size_t until = rounded_up(end, region_grain);
  if (const std::size_t begin = open_[rank].load(); begin < until) {
    make_accessible(region(rank) + begin, until - begin);
    open_[rank].store(until, std::memory_order_release);
  }
}

// Touched as well: what was reserved only, another rank's attempt that fails takes away again (areas.h).
bool Memory::take(std::size_t area, const Shape& shape) const {
  const std::size_t bytes = shape.bytes_in_use();
  const std::size_t offset = shape_.bytes_in_use() + area;
  return area + bytes <= shape_.areas && reserve(descriptor_.number(), offset, bytes) == 0 &&
         ::mprotect(begin_ + offset, bytes, PROT_READ | PROT_WRITE) == 0 && populate(begin_ + offset, bytes) == 0;
}

}  // namespace shoal::shm
