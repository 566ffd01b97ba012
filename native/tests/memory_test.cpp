// The node's shared memory and the machine that it is on: kernels that refuse a file in memory that could be executed,
// or do not know how to say that it cannot; core dumps and others that look through a process's memory; limited
// addresses.

#include "drivers/shm/memory.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>

#include "drivers/shm/array_allocator.h"
#include "tests/check.h"
#include "tests/shm_ranks.h"

namespace {

using namespace shoal;
using namespace shoal::shm;
using namespace shoal::shm_ranks;

constexpr std::uint32_t noexec_seal = 8;  // MFD_NOEXEC_SEAL
constexpr int sealed_exec = 0x20;         // F_SEAL_EXEC

// The exit code of a child that does this.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// From here on this process's memfd_create fails so where the flag is there, or where it is not.
void refuse_memfd(bool with_the_flag, int code) {
  const auto skipped = [](bool skip) { return static_cast<std::uint8_t>(skip ? 1 : 0); };
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, noexec_seal, skipped(!with_the_flag), skipped(with_the_flag)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(code)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  CHECK_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  CHECK_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

// Whether memory can be made, and used.
int makes_memory() {
  try {
    const Memory memory(small_shape(2));
    memory.words(1).written.store(7);
    return memory.words(1).written.load() == 7 ? 0 : 1;
  } catch (const std::exception&) {
    return 2;
  }
}

TEST(memory_is_made_where_only_what_cannot_be_executed_is_allowed) {
  // As Linux 6.3 to 6.6 with vm.memfd_noexec=2.
  CHECK_EQ(in_child([] {
             refuse_memfd(false, EACCES);
             return makes_memory();
           }),
           0);
}

TEST(memory_is_made_by_kernels_that_do_not_know_the_word) {
  // As Linux before 6.3.
  CHECK_EQ(in_child([] {
             refuse_memfd(true, EINVAL);
             return makes_memory();
           }),
           0);
}

TEST(memory_cannot_be_executed_where_the_kernel_sees_to_that) {
  const int probe = static_cast<int>(::syscall(SYS_memfd_create, "probe", noexec_seal));
  if (probe < 0) {
    CHECK_EQ(errno, EINVAL);
    return;
  }
  ::close(probe);
  const Memory memory(small_shape(2));
  CHECK((::fcntl(memory.descriptor(), F_GET_SEALS) & sealed_exec) != 0);
}

// --- Who looks through a process's memory ---

Shape with_holes() {
  Shape shape = small_shape(2);
  shape.areas = 4 * region_grain;
  shape.region = std::size_t{64} << 20U;
  return shape;
}

// Of the machine, for the file that ranks share.
std::size_t bytes_of(int descriptor) {
  struct stat found {};
  CHECK_EQ(::fstat(descriptor, &found), 0);
  return static_cast<std::size_t>(found.st_blocks) * 512;
}

// As another rank has it, which has seen an array of rank 0's.
std::shared_ptr<const Memory> mapped_again(int descriptor, const Shape& shape) {
  auto memory = std::make_shared<const Memory>(os::Descriptor(::dup(descriptor)), shape);
  memory->open(0, 1 << 20U);
  return memory;
}

[[noreturn]] void crash_with_a_core_dump(int descriptor) {
  const auto memory = mapped_again(descriptor, with_holes());
  char folder[] = "/tmp/shoal-core-XXXXXX";
  rlimit limit{};
  if (::mkdtemp(folder) == nullptr || ::chdir(folder) != 0 || ::getrlimit(RLIMIT_CORE, &limit) != 0) {
    ::_exit(1);
  }
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_CORE, &limit);
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  ::signal(SIGABRT, SIG_DFL);
  ::printf("%s\n", folder);
  ::fflush(stdout);
  std::abort();
}

TEST(a_core_dump_makes_no_memory_of_addresses) {
  const auto memory = std::make_shared<const Memory>(with_holes());
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 0);
  const auto array = allocator->allocate(1 << 20U);
  CHECK(array != nullptr);
  const int descriptor = ::dup(memory->descriptor());  // a child does not have the memory's own
  const std::size_t before = bytes_of(descriptor);
  CHECK(before < (std::size_t{4} << 20U));
  int ends[2];
  CHECK_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    crash_with_a_core_dump(descriptor);
  }
  ::close(ends[1]);
  std::string folder(64, '\0');
  const ssize_t told = ::read(ends[0], folder.data(), folder.size());
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(told > 0);
  folder.resize(static_cast<std::size_t>(told) - 1);
  std::filesystem::remove_all(folder);
  CHECK(WIFSIGNALED(status));
  rlimit limit{};
  ::getrlimit(RLIMIT_CORE, &limit);
  CHECK(WCOREDUMP(status) || limit.rlim_max < RLIM_INFINITY);
  CHECK_EQ(bytes_of(descriptor), before);
}

TEST(no_part_of_the_memory_is_in_a_core_dump) {
  const auto memory = std::make_shared<const Memory>(with_holes());
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 0);
  const auto array = allocator->allocate(1 << 20U);
  std::ifstream smaps("/proc/self/smaps");
  int parts = 0;
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    ours = line.find('-') < line.find(' ') ? line.find("/memfd:shoal") != std::string::npos : ours;
    if (ours && line.rfind("VmFlags:", 0) == 0) {
      CHECK(line.find(" dd") != std::string::npos);
      CHECK(line.find(" dc") != std::string::npos);
      ++parts;
    }
  }
  CHECK(parts >= 3);
}

TEST(whoever_reads_along_a_process_reads_no_addresses_without_memory) {
  const auto memory = std::make_shared<const Memory>(with_holes());
  const auto allocator = std::make_shared<ArrayAllocator>(memory, 0);
  const auto array = allocator->allocate(1 << 20U);
  array.get()[7] = std::byte{42};
  const auto other = mapped_again(memory->descriptor(), with_holes());
  const std::size_t before = bytes_of(memory->descriptor());
  const auto can_read = [](const std::byte* at) {
    std::byte read{};
    const iovec into{&read, 1};
    const iovec from{const_cast<std::byte*>(at), 1};
    const ssize_t done = ::process_vm_readv(::getpid(), &into, 1, &from, 1, 0);
    CHECK(done == 1 || errno == EFAULT || errno == ENOSYS);
    return done == 1;
  };
  for (const Memory* each : {memory.get(), other.get()}) {
    const std::byte* const begin = reinterpret_cast<const std::byte*>(&each->words(0));
    std::size_t readable = 0;
    for (std::size_t at = 0; at < each->shape().bytes(); at += region_grain) {
      readable += can_read(begin + at) ? region_grain : 0;
    }
    CHECK_EQ(readable, each->shape().bytes_in_use() + (1 << 20U));
    CHECK_EQ(static_cast<int>(each->region(0)[7]), 42);
  }
  CHECK_EQ(bytes_of(memory->descriptor()), before);
}

// --- Addresses ---

std::size_t machine_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(a_node_takes_addresses_for_twice_what_the_machine_has_however_many_ranks_it_has) {
  for (std::uint32_t ranks = 2; ranks <= most_ranks; ++ranks) {
    const Shape shape = shape_for(ranks, true);
    CHECK(ranks * shape.region >= machine_bytes());
    CHECK(ranks * shape.region <= 2 * machine_bytes() + ranks * region_grain);
  }
}

// Whether memory has regions in a process that may have so many more addresses than it has, and whether the program
// then still has `program` of them.
int regions_with(std::size_t more, std::size_t program) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit{most, most};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) {
    return 10;
  }
  const Memory memory(shape_for(2, true));
  if (memory.has_regions() != memory.why_no_regions().empty()) {
    return 11;
  }
  // As another rank has it.
  const std::size_t areas_of_other =
      Memory(os::Descriptor(::dup(memory.descriptor())), shape_for(2, true)).shape().areas;
  if (areas_of_other != memory.shape().areas || areas_of_other == 0) {
    return 13;
  }
  const void* const own = ::mmap(nullptr, program, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return own == MAP_FAILED ? 12 : static_cast<int>(memory.has_regions());
}

TEST(where_addresses_are_limited_the_program_does_not_miss_those_of_the_regions) {
  const std::size_t mapping = shape_for(2, true).bytes();
  const std::size_t little = std::size_t{64} << 20U;
  CHECK_EQ(in_child([&] { return regions_with(mapping + machine_bytes() + little, machine_bytes()); }), 1);
  CHECK_EQ(in_child([&] { return regions_with(mapping + machine_bytes() / 2, machine_bytes()); }), 0);
  CHECK_EQ(in_child([&] { return regions_with(mapping / 2, machine_bytes() / 2); }), 0);
  // Few as they are, the program has most of them, groups have some, and both ranks know which.
  for (const std::size_t few : {std::size_t{1} << 30U, std::size_t{4} << 30U, std::size_t{8} << 30U}) {
    CHECK_EQ(in_child([&] { return regions_with(few, few / 8 * 7); }), 0);
  }
}

}  // namespace

RUN_TESTS()
